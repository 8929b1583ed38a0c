"""Sandkasten against its peers, on this machine, in one run."""
