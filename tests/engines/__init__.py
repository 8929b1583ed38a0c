"""Docker Engines that belong to a run of ours alone: started by it, and gone with it."""

from __future__ import annotations
