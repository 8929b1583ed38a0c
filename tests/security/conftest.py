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
from tests.grounds import GROUNDS, Ground, open_backend
from tests.security.harness import ROOT, Box, Loop, poll

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from sandkasten.backends.local import LocalBackend

# In our environment from the start, so that every sandbox could have inherited it.
PLANTED = "SANDKASTEN_PLANTED_SECRET"
_left_out = pytest.StashKey[dict[str, str]]()


def chosen_backend(config: pytest.Config) -> str:
    return GROUNDS[config.getoption("ground")].backend


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "differs_on(backend, reason): not asked of this backend, by its nature"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What a backend answers differently by its nature is left out there, and the run says so."""
    backend = chosen_backend(config)
    left_out: dict[str, str] = {}
    kept, dropped = [], []
    for item in items:
        reason = next(
            (m.args[1] for m in item.iter_markers("differs_on") if m.args[0] == backend), None
        )
        if reason is None or "tests/security" not in item.nodeid:
            kept.append(item)
        else:
            left_out[item.name] = str(reason)
            dropped.append(item)
    if dropped:
        config.stash[_left_out] = left_out
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    lines = [f"  {name}: {why}" for name, why in sorted(config.stash.get(_left_out, {}).items())]
    return [f"not asked of {chosen_backend(config)}:", *lines] if lines else []


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
def data_dir(ground: Ground) -> Iterator[Path]:
    """Where the backend under attack keeps its sandboxes."""
    root = Path(tempfile.mkdtemp(prefix="pytest-of-security-", dir="/var/tmp"))
    path = root if ground.backend == "local" else root / ground.backend
    yield path
    left = [cell.name for cell in (path / "cells").glob("*")]
    shutil.rmtree(root)
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
    root = data_dir if ground.backend == "local" else data_dir.parent
    return cast("LocalBackend", open_backend(ground, root))


@pytest.fixture(scope="session")
def make_box(
    loop: Loop, backend: LocalBackend, data_dir: Path, ground: Ground
) -> Callable[..., AbstractContextManager[Box]]:
    """A context manager of a sandbox with its own limits; nothing of it is left at the end."""

    @contextmanager
    def make(limits: Limits | None = None) -> Iterator[Box]:
        limits = limits or Limits(memory_bytes=256 * MIB, workspace_bytes=64 * MIB)
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
