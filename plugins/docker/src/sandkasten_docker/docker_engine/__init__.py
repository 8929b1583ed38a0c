"""A Docker Engine over its API. Knows no sandbox."""
