"""The servers and certificates of `tests/network`."""

from __future__ import annotations

from tests.network.conftest import boxed, certificates, data, docker_data, web  # noqa: F401
