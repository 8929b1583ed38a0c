"""Pull images from OCI registries."""
