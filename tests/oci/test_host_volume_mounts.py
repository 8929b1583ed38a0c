"""Host volumes are removed although a runtime started while they were mounted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.limits import MIB
from sandkasten_runtime.linux.storage import host_volume
from tests.linux.hostvolumes import nothing_of

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten_runtime.backends.oci.backend import OciBackend

pytestmark = pytest.mark.promise("P29")


async def test_a_sandbox_started_meanwhile_does_not_keep_the_volume(
    backend: OciBackend, tmp_path: Path
) -> None:
    place = tmp_path / "v"
    await asyncio.to_thread(host_volume.make, place, 8 * MIB, owner=1000, templates=place.parent)
    cell = await backend.create(new_sandbox_id(), CellSpec(image=Image("host")))
    try:
        await asyncio.to_thread(host_volume.release, place)
        await asyncio.to_thread(nothing_of, place)
        stream = await cell.dial()
        await stream.aclose()
    finally:
        await cell.destroy()
