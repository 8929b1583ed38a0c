"""A client of the daemon with blocking calls and few imports, for short commands."""
