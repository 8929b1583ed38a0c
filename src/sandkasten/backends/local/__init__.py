"""Isolation on this machine by bubblewrap. Other packages use only `LocalBackend`."""

from __future__ import annotations

from sandkasten.backends.local.backend import LocalBackend
from sandkasten.backends.local.cell import LocalCell

__all__ = ["LocalBackend", "LocalCell"]
