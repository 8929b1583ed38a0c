"""The docker backend. Knows a Docker Engine and isolation, and nothing of requests or of HTTP."""

from __future__ import annotations

from .options import Options

__all__ = ["Options"]
