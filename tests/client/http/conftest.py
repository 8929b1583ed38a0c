"""One daemon on the unisolated backend for all tests here; each test has sandboxes of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.client.http.served import Served
from tests.client.http.served import served as serving

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served") / "data") as one:
        yield one
