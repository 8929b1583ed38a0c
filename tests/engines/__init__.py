"""Docker engines that belong to one test run: started by it, and removed with it."""

from __future__ import annotations
