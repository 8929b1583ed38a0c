"""Protocols of other sandbox services, on the same engine."""
