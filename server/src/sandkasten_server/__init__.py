"""The daemon: HTTP API, command line, dashboard, records. The runtime does not import it."""
