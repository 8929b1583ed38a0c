"""Files inside a sandbox, paths that name them, and keys of the file store."""
