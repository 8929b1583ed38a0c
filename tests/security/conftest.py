"""Real sandboxes for the hostile cases, and the checks after each case.

`box` is a new sandbox, `neighbour` an unrelated one. After each test both must answer; after its
destruction nothing of `box` may be left on the host.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from sandkasten.model.sandbox.limits import MIB, Limits
from tests import platform_markers
from tests.cell_pool import Pool
from tests.platform_choice import GROUNDS, Ground, open_backend, place_for, spec_on
from tests.security.harness import Box, Loop, poll

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from sandkasten_runtime.backends.local.backend import LocalBackend

# In our environment from the start, so that every sandbox could have inherited it.
PLANTED = "PLANTED_SECRET_OF_A_TEST"
_HERE = Path(__file__).parent


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    platform_markers.on_platforms(metafunc, "security", "platform", "local", scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    platform_markers.select(config, items, "security", _platform_of)


def _platform_of(item: pytest.Item) -> str | None:
    ours = item.path.parent == _HERE
    return str(item.callspec.params["platform"]) if ours else None  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def on_platform(platform: str) -> None:
    """Run every test of the suite once for each platform."""


@pytest.fixture(scope="session")
def planted_secret() -> Iterator[str]:
    value = "planted-" + secrets.token_hex(16)
    os.environ[PLANTED] = value
    yield value
    del os.environ[PLANTED]


@pytest.fixture(scope="session")
def data_dir(ground: Ground) -> Iterator[Path]:
    around = place_for(ground, Path("/var/tmp/x")).parent
    path = Path(tempfile.mkdtemp(prefix="pytest-of-security-", dir=around))
    yield path
    places = ("cells", "*/cells", "pool/*/cells")
    # An engine of this process keeps a sandbox of its warm pool for a moment.
    poll("cells", lambda: [cell.name for one in places for cell in path.glob(f"{one}/*")])
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def ground(platform: str) -> Ground:
    return GROUNDS[platform]


@pytest.fixture(scope="session")
def backend(
    data_dir: Path, planted_secret: str, ground: Ground, loop: Loop
) -> Iterator[LocalBackend]:
    opened = open_backend(ground, data_dir)
    yield cast("LocalBackend", opened)
    _close(loop, opened)


def _close(loop: Loop, opened: Any) -> None:
    if hasattr(opened, "aclose"):
        loop.run(opened.aclose())


def _limits(ground: Ground) -> Limits:
    # gVisor's own memory counts too, and grows with the commands that were ever run.
    memory = 768 if ground.backend == "gvisor" else 256
    return Limits(memory_bytes=memory * MIB, workspace_bytes=64 * MIB)


@pytest.fixture(scope="session")
def make_box(
    loop: Loop, backend: LocalBackend, data_dir: Path, ground: Ground
) -> Callable[..., AbstractContextManager[Box]]:
    """Return a context manager of a sandbox with its own limits; nothing is left at the end."""

    @contextmanager
    def make(limits: Limits | None = None) -> Iterator[Box]:
        limits = limits or _limits(ground)
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


@pytest.fixture(scope="session")
def pooled_box(
    loop: Loop, data_dir: Path, ground: Ground, planted_secret: str
) -> Iterator[Callable[[bool], AbstractContextManager[Box]]]:
    """As `make_box`, of a pool (see `tests.platform_choice.Cells`); leftovers are found at the end.

    `alone`: nobody may use it again.
    """
    place, limits = data_dir / "pool", _limits(ground)
    spec = replace(spec_on(ground), limits=limits)
    reuse = ground.cells == "reused"
    pool = Pool(lambda: open_backend(ground, place), spec, reuse=reuse)
    backend = cast("LocalBackend", open_backend(ground, place))
    ended: list[Box] = []

    @contextmanager
    def lend(alone: bool) -> Iterator[Box]:
        box = Box(loop, backend, place, limits, ground=ground, made=pool.take())
        try:
            yield box
        finally:
            spoilt = alone or box.destroyed
            as_it_was = not spoilt and loop.run(pool.put_back(box.id, box.channel))
            if not box.destroyed:
                box.leave()
            if not reuse:
                ended.append(box)
            pool.give_back(box.id, spoilt=spoilt, as_it_was=as_it_was)

    yield lend
    pool.close()
    _close(loop, backend)
    for box in ended:
        poll(f"after destroying {box.id}", box.leftovers)


@pytest.fixture
def box(request: pytest.FixtureRequest, neighbour: Box, ground: Ground) -> Iterator[Box]:
    """A new sandbox. After the test it and its neighbour must still answer."""
    alone = request.node.get_closest_marker("own_cell") is not None
    if ground.cells == "fresh":
        place = request.getfixturevalue("make_box")()
    else:
        place = request.getfixturevalue("pooled_box")(alone)
    with place as box:
        yield box
        neighbour.answers()
        if not box.destroyed:
            box.answers()


@pytest.fixture(scope="module")
def shared_box(
    make_box: Callable[..., AbstractContextManager[Box]], neighbour: Box
) -> Iterator[Box]:
    """One sandbox for a module of read-only cases."""
    with make_box() as box:
        yield box
        neighbour.answers()
        box.answers()
