"""The docker backend. Knows a Docker Engine and isolation, and nothing of requests or HTTP.

Nothing is imported here: settings need `docker_options` only, and most processes need nothing else.
"""
