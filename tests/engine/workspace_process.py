"""One of several processes on one ledger and one set of workspaces.

`python -m tests.engine.workspace_process ACT ROOT` prints its results, one word per line.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.errors import SandkastenError
from sandkasten.model.sandbox.policy import Policy
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.engine.engine import Engine
from sandkasten_runtime.images.host_image import HostImages
from sandkasten_runtime.linux.storage.workspace_directory import WorkspaceDirectory
from sandkasten_runtime.store.ledger_directory import DirectoryStore
from tests.engine.folder_backend import FolderBackend, FolderCell

if TYPE_CHECKING:
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec


class Folder(FolderBackend):
    """Its cells cannot mount an image; that the volume is there is enough here."""

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> FolderCell:
        if spec.workspace is None or not os.access(spec.workspace.path, os.R_OK):
            raise AssertionError("the volume of a sandbox that is being made is gone")
        return await super().create(sandbox_id, replace(spec, workspace=None))


def engine_at(root: Path, die: str = "") -> Engine:
    return Engine(
        backends={"folder": Folder(root, die)},
        default_backend="folder",
        store=DirectoryStore(root / "ledger"),
        images=HostImages(),
        policy=Policy(),
        clock=SystemClock(),
        workspaces=WorkspaceDirectory(root / "workspaces"),
    )


REQUEST = CreateRequest(SandboxOptions(workspace_id="w", limits={"workspace_mb": 8}))


async def _try(engine: Engine, request: CreateRequest) -> str:
    try:
        return (await engine.create(request)).id
    except SandkastenError as exc:
        return exc.code


async def _main(act: str, root: Path) -> None:
    if act == "claim":
        engine = engine_at(root)
        print(await _try(engine, REQUEST), flush=True)  # noqa: T201
        sys.stdin.read()  # stays the living owner until told
    elif act == "churn":
        engine = engine_at(root)
        for _ in range(10):
            made = await _try(engine, REQUEST)
            if made.startswith("sbx_"):
                others = [one for one in await engine.list() if one.workspace_id == "w"]
                alive = [one.id for one in others if one.status == "running"]
                if alive != [made]:
                    raise AssertionError(f"{made} has the workspace, and so have {alive}")
                await engine.destroy(made)
            print(made)  # noqa: T201
            try:
                await engine.workspaces.delete("w")
            except SandkastenError as exc:
                print(exc.code)  # noqa: T201
    elif act == "making":
        # Ends in the middle of making the volume.
        import sandkasten_runtime.linux.storage.ext4 as ext4

        ext4.make = lambda *_: os._exit(9)
        await _try(engine_at(root), REQUEST)
    else:
        await _try(engine_at(root, act), REQUEST)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2])))
