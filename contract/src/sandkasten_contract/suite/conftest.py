"""The fixtures of the contract, on the backend of `sandkasten_contract.suite_options`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.limits import Limits
from sandkasten_contract import suite_options
from sandkasten_contract.box import Box
from sandkasten_contract.patience import removed_soon
from sandkasten_contract.selection import MARKERS, why_not

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sandkasten.ports import Backend, Cell
    from sandkasten_contract.suite_options import SuiteOptions

pytest_plugins = ["anyio"]


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    options = _options()
    dropped = [
        item for item in items
        if why_not(item, options.traits, options.image, options.provides)
        or item.get_closest_marker("long")
    ]  # fmt: skip
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]


def _options() -> SuiteOptions:
    if suite_options.chosen is None:
        raise pytest.UsageError("run the contract with: sandkasten-contract NAME")
    return suite_options.chosen


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="skc-", dir="/var/tmp"))
    yield path
    removed_soon(path)


@pytest.fixture
def backend_name() -> str:
    return _options().backend


@pytest.fixture
async def backend(scratch: Path) -> AsyncIterator[Backend]:
    """A ready backend; everything that a test leaves in it is removed."""
    backend = _options().open_backend(scratch)
    readiness = await backend.probe()
    if not readiness.ready:
        pytest.fail(f"{backend.name} cannot be used: {readiness.reason} ({readiness.remedy})")
    yield backend
    for sandbox_id in await backend.owned():
        await backend.discard(sandbox_id)
    await backend.aclose()


@pytest.fixture
def spec(backend: Backend) -> CellSpec:
    return _spec(backend, Limits())


def _spec(backend: Backend, limits: Limits) -> CellSpec:
    return CellSpec(image=_options().resolved_image(backend), limits=limits)


@pytest.fixture
async def cell(backend: Backend, spec: CellSpec) -> AsyncIterator[Cell]:
    cell = await backend.create(new_sandbox_id(), spec)
    yield cell
    await cell.destroy()


@pytest.fixture
async def box(cell: Cell) -> AsyncIterator[Box]:
    """A new cell and one channel to its runner."""
    box = await Box.open(cell)
    yield box
    await box.aclose()


@pytest.fixture
async def limited(backend: Backend) -> AsyncIterator[Any]:
    """Create cells with the limits of the test."""
    cells: list[Cell] = []
    boxes: list[Box] = []

    async def create(limits: Limits) -> Box:
        cells.append(await backend.create(new_sandbox_id(), _spec(backend, limits)))
        boxes.append(await Box.open(cells[-1]))
        return boxes[-1]

    yield create
    for box in boxes:
        await box.aclose()
    for cell in cells:
        await cell.destroy()
