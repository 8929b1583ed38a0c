"""A local backend whose sandboxes are made for the warm pool, and then claimed.

`create` makes a sandbox of the kind and applies the request with the code of the engine, so that a
suite below the engine can examine what a claim gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.model.pool.pool_kinds import pooled_spec, unusual
from sandkasten.model.sandbox.policy import Lease
from sandkasten_runtime.backends.local.backend import LocalBackend
from sandkasten_runtime.engine.pool.spare_claims import apply_request
from sandkasten_runtime.wire.channel import Channel

if TYPE_CHECKING:
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten_runtime.backends.launched_sandboxes import LaunchedCell

# Longer than any test; a test that needs another one sets it.
_LEASE = Lease(3600.0, 3600.0)


class ClaimedLocalBackend(LocalBackend):
    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> LaunchedCell:
        if unusual(spec, named_workspace=spec.workspace is not None):
            return await super().create(sandbox_id, spec)
        kind = pooled_spec(spec, resizable=self.capabilities.resizes)
        cell = await super().create(sandbox_id, kind)
        channel = await Channel.open(await cell.dial())
        try:
            for work in apply_request(sandbox_id, self, cell, channel, kind.limits, spec, _LEASE):
                await work
        except BaseException:
            await cell.destroy()
            raise
        finally:
            await channel.aclose()
        return cell
