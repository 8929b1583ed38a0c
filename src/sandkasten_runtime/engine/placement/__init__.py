"""Give a request a backend, and remember which backends do not answer."""
