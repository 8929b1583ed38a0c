"""One contract for every backend: the platforms of a run, and a fresh sandbox for each test.

`--platform NAME` (repeatable) chooses them (see `tests.platform_choice`: `local/debian` is the
local backend on a Debian image); without it the suite runs on `unisolated` and `local`. A NAME of
the form `package.module:factory` opens another backend: the factory is called with a scratch
directory and returns an object of `ports.Backend`. A backend that cannot be used here fails every
test with the reason its `probe` gives; nothing is skipped. Where a sandbox takes long to make,
`box` and `cell` come from a pool (see `tests.platform_choice.Cells`).
"""

from __future__ import annotations

import asyncio
import importlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.model.ids import new_sandbox_id
from sandkasten_contract.box import Box
from tests import platform_markers
from tests.cell_pool import Pool, taken_away
from tests.platform_choice import GROUNDS, Ground, engine_of, place_for, spec_on
from tests.platform_choice import open_backend as open_ground

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten.model.sandbox.limits import Limits
    from sandkasten.ports import Backend, Cell

DEFAULT_BACKENDS = ("unisolated", "local")

_lent = pytest.StashKey[tuple[Pool, "SandboxId"]]()
_as_it_was = pytest.StashKey[bool]()
_HERE = Path(__file__).parent


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend_name" in metafunc.fixturenames:
        platform_markers.on_platforms(metafunc, "contract", "backend_name", *DEFAULT_BACKENDS)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    platform_markers.select(config, items, "contract", _ground_of)


def _ground_of(item: pytest.Item) -> str | None:
    name = getattr(getattr(item, "callspec", None), "params", {}).get("backend_name")
    return str(name) if name is not None and _HERE in item.path.parents else None


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """The data directory of the backends; one for the run, as a user has one for all sandboxes."""
    path = Path(tempfile.mkdtemp(prefix="skc-", dir="/var/tmp"))
    yield path
    for made in (path, *path.parent.glob(f"{path.name}-pool-*")):
        shutil.rmtree(made, ignore_errors=True)


def open_backend(name: str, scratch: Path) -> Backend:
    if name in GROUNDS:
        return open_ground(GROUNDS[name], place_for(GROUNDS[name], scratch))
    module, _, factory = name.partition(":")
    if not factory:
        pytest.fail(f"--platform {name}: known are {', '.join(GROUNDS)} and package.module:factory")
    opened: Backend = getattr(importlib.import_module(module), factory)(scratch)
    return opened


@pytest.fixture
def prepared_ground(backend_name: str) -> None:
    """What the ground needs is there; it may take a while, and no event loop waits for it."""
    ground = GROUNDS.get(backend_name)
    if ground is not None and ground.backend == "docker":
        engine_of(ground)
        importlib.import_module("aiodocker")
    if ground is not None and ground.backend == "e2b":
        importlib.import_module("sandkasten_cloud.e2b.e2b_provider")
        importlib.import_module("tests.cloud.e2b_service").service()
    if ground is not None and ground.backend == "fly":
        importlib.import_module("tests.cloud.fly_platform").service()
    if ground is not None and ground.backend == "modal":
        importlib.import_module("modal")
        importlib.import_module("tests.cloud.modal.modal_service").service()


@pytest.fixture(scope="session")
def ready_backends() -> set[str]:
    """Backends whose probe reported that they are usable."""
    return set()


@pytest.fixture
async def backend(
    backend_name: str, scratch: Path, prepared_ground: None, ready_backends: set[str]
) -> AsyncIterator[Backend]:
    """A ready backend; everything that a test leaves in it is removed."""
    opened = open_backend(backend_name, scratch)
    if backend_name not in ready_backends:
        readiness = await opened.probe()
        if not readiness.ready:
            pytest.fail(f"{backend_name} cannot be used: {readiness.reason} ({readiness.remedy})")
        ready_backends.add(backend_name)
    yield opened
    for sandbox_id in await opened.owned():
        await taken_away(opened, sandbox_id)
    await _closed(opened)


async def _closed(backend: Any) -> None:
    if hasattr(backend, "aclose"):
        await backend.aclose()


def _spec(backend_name: str, limits: Limits | None = None) -> CellSpec:
    return spec_on(GROUNDS.get(backend_name, Ground("other")), limits)


@pytest.fixture
def spec(backend_name: str) -> CellSpec:
    return _spec(backend_name)


def _pool_place(scratch: Path, platform: str) -> Path:
    """Return a data directory for one platform; those of one engine would find each other's."""
    return scratch.with_name(f"{scratch.name}-pool-{platform.replace('/', '-')}")


@pytest.fixture(scope="session")
def pools(scratch: Path) -> Iterator[Callable[[str], Pool]]:
    """One for each ground that has one; below a directory of its own, so that no test counts it."""
    opened: dict[str, Pool] = {}

    def pool(name: str) -> Pool:
        if name not in opened:
            reuse = GROUNDS[name].cells == "reused"
            place = _pool_place(scratch, name)
            opened[name] = Pool(lambda: open_backend(name, place), _spec(name), reuse=reuse)
        return opened[name]

    yield pool
    for one in opened.values():
        one.close()


@pytest.fixture
async def cell(
    backend: Backend,
    backend_name: str,
    spec: CellSpec,
    scratch: Path,
    pools: Callable[[str], Pool],
    request: pytest.FixtureRequest,
) -> AsyncIterator[Cell]:
    ground = GROUNDS.get(backend_name)
    if ground is None or ground.cells == "fresh":
        made = await backend.create(new_sandbox_id(), spec)
        yield made
        await made.destroy()
        return
    pool, beside = (
        pools(backend_name),
        open_backend(backend_name, _pool_place(scratch, backend_name)),
    )
    sandbox_id = await asyncio.to_thread(pool.take)
    alone = request.node.get_closest_marker("own_cell") is not None
    stash = request.node.stash
    if not alone:
        stash[_lent] = pool, sandbox_id
    try:
        yield await beside.attach(sandbox_id)
    finally:
        pool.give_back(sandbox_id, spoilt=alone, as_it_was=stash.get(_as_it_was, False))
        await _closed(beside)


@pytest.fixture
async def box(cell: Cell, request: pytest.FixtureRequest) -> AsyncIterator[Box]:
    """A new cell and one channel to its runner."""
    opened = await Box.open(cell)
    yield opened
    if _lent in request.node.stash:
        pool, sandbox_id = request.node.stash[_lent]
        request.node.stash[_as_it_was] = await pool.put_back(sandbox_id, opened.channel)
    await opened.aclose()


@pytest.fixture
async def limited(backend: Backend, backend_name: str) -> AsyncIterator[Any]:
    """Create cells with the limits of the test."""
    opened: list[Box] = []
    cells: list[Cell] = []

    async def make(limits: Limits) -> Box:
        made = await backend.create(new_sandbox_id(), _spec(backend_name, limits))
        cells.append(made)
        opened.append(await Box.open(made))
        return opened[-1]

    yield make
    for one in opened:
        await one.aclose()
    for made in cells:
        await made.destroy()
