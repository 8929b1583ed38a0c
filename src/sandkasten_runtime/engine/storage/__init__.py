"""Files, named workspaces and images, as use cases."""
