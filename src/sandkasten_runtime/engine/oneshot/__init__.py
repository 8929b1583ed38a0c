"""Temporary sandboxes: one-shot code, the warm pool, build and package steps."""
