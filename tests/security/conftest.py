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
from typing import TYPE_CHECKING, cast

import pytest

from sandkasten.model.limits import MIB, Limits
from tests import asked
from tests.grounds import GROUNDS, Ground, open_backend
from tests.security.harness import ROOT, Box, Loop, poll

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from sandkasten.backends.local import LocalBackend

# In our environment from the start, so that every sandbox could have inherited it.
PLANTED = "SANDKASTEN_PLANTED_SECRET"
AGAIN = "test_as_ordinary_user.py"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What runs the suite once more is for the run that is about the first ground."""
    again = collection_path.name == AGAIN
    return True if again and (not ROOT or config.getoption("ground") != "local") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked.select(config, items, "security", lambda item: _ground_of(config, item))


def _ground_of(config: pytest.Config, item: pytest.Item) -> str | None:
    ours = item.path.parent == Path(__file__).parent and item.path.name != AGAIN
    return str(config.getoption("ground")) if ours else None


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
    left = [cell.name for place in ("cells", "*/cells") for cell in path.glob(f"{place}/*")]
    shutil.rmtree(path)
    assert left == []


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def ground(request: pytest.FixtureRequest) -> Ground:
    return GROUNDS[request.config.getoption("ground")]


@pytest.fixture(scope="session")
def backend(data_dir: Path, planted_secret: str, ground: Ground) -> LocalBackend:
    return cast("LocalBackend", open_backend(ground, data_dir))


@pytest.fixture(scope="session")
def make_box(
    loop: Loop, backend: LocalBackend, data_dir: Path, ground: Ground
) -> Callable[..., AbstractContextManager[Box]]:
    """A context manager of a sandbox with its own limits; nothing of it is left at the end."""

    @contextmanager
    def make(limits: Limits | None = None) -> Iterator[Box]:
        # gVisor's own memory counts too, and grows with the commands that were ever run.
        memory = 768 if ground.backend == "gvisor" else 256
        limits = limits or Limits(memory_bytes=memory * MIB, workspace_bytes=64 * MIB)
        box = Box(loop, backend, data_dir, limits, ground=ground)
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
