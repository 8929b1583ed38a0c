"""A volume on the host goes for certain, although a runtime was begun while it was there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sandkasten.linux import hostvolume
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.image import Image
from sandkasten.model.limits import MIB
from sandkasten.model.spec import CellSpec
from tests.linux.hostvolumes import nothing_of

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten.backends.oci import OciBackend

pytestmark = pytest.mark.promise("P29")


async def test_a_sandbox_that_began_meanwhile_does_not_keep_it(
    backend: OciBackend, tmp_path: Path
) -> None:
    place = tmp_path / "v"
    await asyncio.to_thread(hostvolume.make, place, 8 * MIB, owner=1000)
    cell = await backend.create(new_sandbox_id(), CellSpec(image=Image("host")))
    try:
        await asyncio.to_thread(hostvolume.release, place)
        await asyncio.to_thread(nothing_of, place)
        stream = await cell.dial()
        await stream.aclose()
    finally:
        await cell.destroy()
