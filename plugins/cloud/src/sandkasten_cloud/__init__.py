"""Sandboxes on machines of a provider: what all providers share, and a package for each."""
