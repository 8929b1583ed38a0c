"""A daemon on the local backend for E2B's SDKs, and E2B's routes on a daemon in this process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandkasten_e2b.e2b_assembly import open_e2b
from tests.api.daemon_with_database import booked
from tests.client.http.served import Served, served
from tests.e2b_requests import E2b, engine_at

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def daemon() -> Iterator[Served]:
    with (
        tempfile.TemporaryDirectory(prefix="pytest-of-e2b-", dir="/var/tmp") as place,
        served(Path(place) / "data", backend="local") as one,
    ):
        yield one


def e2b_variables(daemon: Served) -> dict[str, str]:
    """Return the environment of a program for E2B that is to use this daemon."""
    url = f"{daemon.url}/e2b"
    return {**os.environ, "E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": daemon.key}


@pytest.fixture
async def e2b(tmp_path):
    async with (
        engine_at(tmp_path) as engine,
        open_e2b(b"k" * 32, {}) as routes,
        booked(engine, tmp_path / "data", more=routes) as daemon,
    ):
        yield E2b(daemon)
