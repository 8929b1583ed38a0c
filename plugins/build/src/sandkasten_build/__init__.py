"""Builds of images, packages for sandboxes, and the check of signatures, as a plugin."""
