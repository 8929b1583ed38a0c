"""The API server of a cluster: credentials, calls and streams. Knows nothing of sandboxes."""
