"""Isolation by an OCI runtime: runc or crun, or gVisor's runsc. `OciBackend` is all others need."""

from __future__ import annotations

from .backend import OciBackend
from .cell import OciCell

__all__ = ["OciBackend", "OciCell"]
