"""Listening sockets and HTTP connections with deadlines."""
