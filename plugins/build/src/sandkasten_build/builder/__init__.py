"""Build images from Debian packages, recipes and Dockerfiles."""
