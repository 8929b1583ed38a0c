"""Settings of the HTTP server and of the daemon's records."""
