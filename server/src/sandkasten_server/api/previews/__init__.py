"""Previews: each port of a sandbox on its own origin, for browsers."""
