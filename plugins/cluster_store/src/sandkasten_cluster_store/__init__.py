"""Records of several daemons in PostgreSQL, and the content of their stored files in a bucket."""
