"""Isolation on this machine by bubblewrap."""
