"""The docker backend. Knows a Docker Engine and isolation, and nothing of requests or of HTTP.

Nothing is imported here: settings need `options`, and most processes nothing else.
"""
