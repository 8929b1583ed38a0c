"""Packages of PyPI and npm for sandboxes: fetched here, installed inside, mounted read-only."""
