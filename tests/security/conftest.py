"""Real sandboxes for the hostile cases, and what is checked after every one of them.

`box` is a fresh sandbox, `neighbour` another one that has nothing to do with the case. After each
test both must answer; after its destruction nothing of `box` may be left on the host.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandkasten.backends.local import LocalBackend
from sandkasten.model.limits import MIB, Limits
from tests.security.harness import ROOT, Box, Loop, poll

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

# In our environment from the start, so that every sandbox could have inherited it.
PLANTED = "SANDKASTEN_PLANTED_SECRET"


@pytest.fixture(autouse=True)
def _only_as_root(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("root") and not ROOT:
        pytest.skip("an ordinary user has no cgroups and no id range")


@pytest.fixture(scope="session")
def planted_secret() -> Iterator[str]:
    value = "planted-" + secrets.token_hex(16)
    os.environ[PLANTED] = value
    yield value
    del os.environ[PLANTED]


@pytest.fixture(scope="session")
def data_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="pytest-of-security-", dir="/var/tmp"))
    yield path
    left = [cell.name for cell in (path / "cells").glob("*")]
    shutil.rmtree(path)
    assert left == []


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def backend(data_dir: Path, planted_secret: str) -> LocalBackend:
    return LocalBackend(data_dir)


@pytest.fixture(scope="session")
def make_box(
    loop: Loop, backend: LocalBackend, data_dir: Path
) -> Callable[..., AbstractContextManager[Box]]:
    """A context manager of a sandbox with its own limits; nothing of it is left at the end."""

    @contextmanager
    def make(limits: Limits | None = None) -> Iterator[Box]:
        limits = limits or Limits(memory_bytes=256 * MIB, workspace_bytes=64 * MIB)
        box = Box(loop, backend, data_dir, limits)
        try:
            yield box
        finally:
            if not box.destroyed:
                box.destroy()
        # Init gets round to orphans late; zombies do not count, and a loop device is freed
        # a moment after its last user.
        poll(f"after destroying {box.id}", box.leftovers)

    return make


@pytest.fixture(scope="session")
def neighbour(make_box: Callable[..., AbstractContextManager[Box]]) -> Iterator[Box]:
    with make_box() as box:
        yield box


@pytest.fixture
def box(make_box: Callable[..., AbstractContextManager[Box]], neighbour: Box) -> Iterator[Box]:
    """A fresh sandbox. When the test is over it and its neighbour still answer."""
    with make_box() as box:
        yield box
        neighbour.answers()
        if not box.destroyed:
            box.answers()


@pytest.fixture(scope="module")
def shared_box(
    make_box: Callable[..., AbstractContextManager[Box]], neighbour: Box
) -> Iterator[Box]:
    """One sandbox for a module of cases that only look."""
    with make_box() as box:
        yield box
        neighbour.answers()
        box.answers()
