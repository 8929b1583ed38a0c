"""A daemon asked with blocking calls and few imports, for commands that are over quickly."""
