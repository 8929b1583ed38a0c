"""Adapters of `ports.Backend`, one per kind of isolation; no two import each other."""
