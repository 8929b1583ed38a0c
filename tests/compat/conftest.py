"""A daemon on the local backend, for programs that use published clients."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.client.http.served import Served, served

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def daemon() -> Iterator[Served]:
    with (
        tempfile.TemporaryDirectory(prefix="pytest-of-compat-", dir="/var/tmp") as place,
        served(Path(place) / "data", backend="local") as one,
    ):
        yield one
