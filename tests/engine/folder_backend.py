"""A backend that several processes share: a cell is a file in a folder, its runner unisolated.

Another process sees the cell and can remove it; only the one that made it can talk to it.
Run as a program it plays one such process: `python -m tests.engine.folder_backend ACT ROOT`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.errors import SandboxLost
from sandkasten.model.backends.capabilities import UNKNOWN
from sandkasten.model.ids import SandboxId
from sandkasten.model.sandbox.policy import Policy
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.engine.engine import Engine
from sandkasten_runtime.images.host_image import HostImages
from sandkasten_runtime.store.ledger_directory import DirectoryStore
from tests.unisolated.backend import UnisolatedBackend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten.model.sandbox.readiness import Readiness
    from sandkasten.model.sandbox.usage import Usage
    from sandkasten.ports import ByteStream


class FolderCell:
    def __init__(self, backend: FolderBackend, the_id: SandboxId) -> None:
        self._backend = backend
        self._id = the_id

    async def dial(self) -> ByteStream:
        return await (await self._backend.unisolated.attach(self._id)).dial()

    async def usage(self) -> Usage:
        return await (await self._backend.unisolated.attach(self._id)).usage()

    async def destroy(self) -> None:
        await self._backend.discard(self._id)


class FolderBackend:
    name = "folder"
    capabilities = UNKNOWN

    def __init__(self, root: Path, die: str = "") -> None:
        self._root = root / "cells"
        self._root.mkdir(parents=True, exist_ok=True)
        self._die = die
        self.unisolated = UnisolatedBackend(root / "unisolated")

    async def probe(self) -> Readiness:
        return await self.unisolated.probe()

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> FolderCell:
        if self._die == "before":
            os._exit(9)
        (self._root / sandbox_id).write_text("")
        if self._die == "after":
            os._exit(9)
        await self.unisolated.create(sandbox_id, spec)
        await asyncio.sleep(0.02)
        return FolderCell(self, sandbox_id)

    async def attach(self, sandbox_id: SandboxId) -> FolderCell:
        if not (self._root / sandbox_id).exists():
            raise SandboxLost("there is no such cell")
        return FolderCell(self, sandbox_id)

    async def owned(self) -> Sequence[SandboxId]:
        return [SandboxId(path.name) for path in self._root.iterdir()]

    async def discard(self, sandbox_id: SandboxId) -> None:
        if self._die == "destroy":
            os._exit(9)
        (self._root / sandbox_id).unlink(missing_ok=True)
        await self.unisolated.discard(sandbox_id)

    async def ping(self) -> None:
        """It needs nothing else."""

    async def aclose(self) -> None:
        """It keeps nothing open."""


def folder_engine(root: Path, die: str = "") -> Engine:
    return Engine(
        backends={"folder": FolderBackend(root, die)},
        default_backend="folder",
        store=DirectoryStore(root / "ledger"),
        images=HostImages(),
        policy=Policy(),
        clock=SystemClock(),
    )


async def _main(act: str, root: Path) -> None:
    if act == "key":
        engine = folder_engine(root)
        crowd = (engine.create(CreateRequest(session_key="k")) for _ in range(25))
        ids = {info.id for info in await asyncio.gather(*crowd)}
        sys.stdout.write("\n".join(ids))
    elif act == "churn":
        engine = folder_engine(root)
        for _ in range(15):
            info = await engine.create(CreateRequest())
            await engine.sweep()
            await engine.destroy(info.id)
    else:
        engine = folder_engine(root, act)
        info = await engine.create(CreateRequest(session_key="k"))
        await engine.destroy(info.id)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2])))
