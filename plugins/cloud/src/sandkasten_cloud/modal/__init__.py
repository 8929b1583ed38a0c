"""Sandboxes at Modal, by its official SDK."""
