"""Docker Engines: the docker backend, and in `daemon_container` the daemon as a container.

The backend knows a Docker Engine and isolation, and nothing of requests or HTTP.

Nothing is imported here: most processes need only `docker_options`, for the settings.
"""
