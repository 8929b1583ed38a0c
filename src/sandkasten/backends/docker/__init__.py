"""The docker backend. Knows a Docker Engine and isolation, and nothing of requests or of HTTP."""

from __future__ import annotations

from .backend import DockerBackend
from .options import Options

__all__ = ["DockerBackend", "Options"]
