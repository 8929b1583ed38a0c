"""Fixtures of the tests of HTTP, for the routes of agents."""

from __future__ import annotations

from tests.api.conftest import patient_streams

__all__ = ["patient_streams"]
