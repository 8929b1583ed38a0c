"""Previews: each port of a sandbox on an origin of its own, for browsers."""
