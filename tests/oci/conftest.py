"""Real sandboxes of runc and gVisor; leftovers of a test are found and removed."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten_contract.box import Box
from sandkasten_runtime.backends.oci.backend import OciBackend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

RUNTIMES = {"oci": "runc", "gvisor": "runsc"}


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="sko-", dir="/var/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(params=RUNTIMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def backend(name: str, scratch: Path) -> AsyncIterator[OciBackend]:
    opened = OciBackend(scratch, RUNTIMES[name])  # type: ignore[arg-type]
    yield opened
    for sandbox_id in await opened.owned():
        await opened.discard(sandbox_id)


@pytest.fixture
async def box(backend: OciBackend) -> AsyncIterator[Box]:
    cell = await backend.create(new_sandbox_id(), CellSpec(image=Image("host")))
    made = await Box.open(cell)
    yield made
    await made.aclose()
    await cell.destroy()
