"""A daemon on the local backend, and programs that use it through published clients."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.compat.e2b.e2b_assembly import open_e2b
from tests import environments
from tests.api.daemon_with_database import booked
from tests.client.http.served import Served, served
from tests.compat.e2b_requests import E2b, engine_at

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def daemon() -> Iterator[Served]:
    with (
        tempfile.TemporaryDirectory(prefix="pytest-of-compat-", dir="/var/tmp") as place,
        served(Path(place) / "data", backend="local") as one,
    ):
        yield one


def driven(program: str, *words: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a program of this folder in the environment of the clients; return what it saw."""
    done = subprocess.run(
        [str(environments.compat()), "-I", str(Path(__file__).with_name(program)), *words],
        env=env,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


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
