"""The daemon's records in PostgreSQL, shared by several daemons."""
