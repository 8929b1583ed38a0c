"""The daemon's memory in one SQLite file: the journal, the keys and the rows of stored files."""
