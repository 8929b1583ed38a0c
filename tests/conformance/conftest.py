"""One contract, any backend: which backends a run is about, and a fresh place for each test.

`--backend NAME` (repeatable) chooses them; without it the suite runs on `memory` and `local`.
A NAME of the form `package.module:factory` opens a backend of somebody else: the factory is
called with a scratch directory and answers an object of `ports.Backend`. A backend that cannot
be used here fails every test with the reason its `probe` gives; nothing is skipped. Tests that
need a real kernel are deselected on `memory`, and the run says which and why.
"""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.backends.memory import MemoryBackend
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.image import Image
from sandkasten.model.spec import CellSpec
from tests.conformance.box import Box

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sandkasten.model.limits import Limits
    from sandkasten.ports import Backend, Cell

DEFAULT_BACKENDS = ("memory", "local")
_left_out = pytest.StashKey[dict[str, str]]()

# As root the suite is run once more by an ordinary user; an ordinary user has nobody to become.
collect_ignore = [] if os.geteuid() == 0 else ["test_as_ordinary_user.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend",
        action="append",
        metavar="NAME",
        help="a backend to hold to the contract: memory, local, oci, gvisor or "
        "package.module:factory",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs_kernel(reason): the memory backend has no kernel to do this with"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend_name" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("backend", None) or DEFAULT_BACKENDS
        metafunc.parametrize("backend_name", list(chosen))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out: dict[str, str] = {}
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        marker = item.get_closest_marker("needs_kernel")
        params = getattr(getattr(item, "callspec", None), "params", {})
        if marker is not None and params.get("backend_name") == "memory":
            left_out[item.name] = str(marker.args[0])
            dropped.append(item)
        else:
            kept.append(item)
    if dropped:
        config.stash[_left_out] = left_out
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    left_out = config.stash.get(_left_out, {})
    lines = [f"  {name}: {reason}" for name, reason in sorted(left_out.items())]
    return ["not asked of the memory backend:", *lines] if lines else []


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """Where a backend keeps its things; one for the run, as a user has one for all sandboxes."""
    path = Path(tempfile.mkdtemp(prefix="skc-", dir="/var/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def open_backend(name: str, scratch: Path) -> Backend:
    if name == "memory":
        return MemoryBackend()
    if name == "local":
        from sandkasten.backends.local import LocalBackend

        return LocalBackend(data_dir=scratch)
    if name in ("oci", "gvisor"):
        from sandkasten.backends.oci import OciBackend

        return OciBackend(data_dir=scratch, runtime="runc" if name == "oci" else "runsc")
    module, _, factory = name.partition(":")
    if not factory:
        pytest.fail(
            f"--backend {name}: known are memory, local, oci, gvisor and package.module:factory"
        )
    opened: Backend = getattr(importlib.import_module(module), factory)(scratch)
    return opened


@pytest.fixture
async def backend(backend_name: str, scratch: Path) -> AsyncIterator[Backend]:
    """A backend that is ready; whatever a test left in it is removed afterwards."""
    opened = open_backend(backend_name, scratch)
    readiness = await opened.probe()
    if not readiness.ready:
        pytest.fail(f"{backend_name} cannot be used: {readiness.reason} ({readiness.remedy})")
    yield opened
    for sandbox_id in await opened.owned():
        cell = await opened.attach(sandbox_id)
        await cell.destroy()
    closing: Any = getattr(opened, "aclose", None)
    if closing is not None:
        await closing()


@pytest.fixture
def spec() -> CellSpec:
    return CellSpec(image=Image("host"))


@pytest.fixture
async def cell(backend: Backend, spec: CellSpec) -> AsyncIterator[Cell]:
    made = await backend.create(new_sandbox_id(), spec)
    yield made
    await made.destroy()


@pytest.fixture
async def box(cell: Cell) -> AsyncIterator[Box]:
    """A fresh place and one channel to its runner."""
    opened = await Box.open(cell)
    yield opened
    await opened.aclose()


@pytest.fixture
async def limited(backend: Backend) -> AsyncIterator[Any]:
    """Makes places with limits of the test's choice."""
    opened: list[Box] = []
    cells: list[Cell] = []

    async def make(limits: Limits) -> Box:
        made = await backend.create(new_sandbox_id(), CellSpec(image=Image("host"), limits=limits))
        cells.append(made)
        opened.append(await Box.open(made))
        return opened[-1]

    yield make
    for one in opened:
        await one.aclose()
    for made in cells:
        await made.destroy()
