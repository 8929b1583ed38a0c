"""Sandboxes as values: requests, descriptions, limits and rules."""
