"""The daemon's SQLite database: the journal, the keys and the rows of stored files."""
