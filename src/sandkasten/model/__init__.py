"""Nouns and rules, pure: no loop, no clock, no file, no process."""
