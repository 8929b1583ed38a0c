"""Packages of PyPI and npm for sandboxes: fetched here, installed inside, shown read-only."""
