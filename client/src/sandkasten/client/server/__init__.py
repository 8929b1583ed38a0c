"""What serves the client: the embedded engine or a daemon."""
