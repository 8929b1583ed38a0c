"""Isolation on this machine by bubblewrap. `LocalBackend` is all that others need."""

from __future__ import annotations

from .backend import LocalBackend
from .cell import LocalCell

__all__ = ["LocalBackend", "LocalCell"]
