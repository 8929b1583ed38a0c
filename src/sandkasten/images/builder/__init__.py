"""Build images from Debian packages and from recipes of steps."""
