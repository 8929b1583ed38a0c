"""The way from a daemon to the gate of a sandbox on another machine: its keys, and TLS to it.

Shared by the backends whose runner is behind a gate (`runner/src/gate/`). Not a backend.
"""
