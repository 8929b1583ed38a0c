"""Temporary sandboxes in which packages are inspected and installed.

Implements `ports.Sites`. Hardened, without a network, with nothing of the operator's environment,
no mounts but those given, and in no list. Gone when the block ends, however it ends; if this
process dies, the lease and any reaper remove the sandbox.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandkasten.disk.cleanup import finish
from sandkasten.disk.os_errors import translated
from sandkasten.disk.tree_tar import packed
from sandkasten.errors import SandkastenError
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.cell_spec import WORKSPACE
from sandkasten.model.sandbox.limits import MIB
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten.ports import Remote, backend_part

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sandkasten.model.commands.exec_values import ExecResult
    from sandkasten.model.images.resolved_image import Image
    from sandkasten.model.sandbox.cell_spec import HostMount
    from sandkasten.ports import Store
    from sandkasten_runtime.engine.commands.execution import Execution
    from sandkasten_runtime.engine.lifecycle.planner import Planner
    from sandkasten_runtime.engine.lifecycle.sandboxes import Sandboxes
    from sandkasten_runtime.engine.storage.sandbox_files import FileOperations

# A generous bound that no request chose, so its space is not reserved. No package set has needed
# more.
_MOST_MB: Final = 16 * 1024


class PackageSandboxes:
    def __init__(
        self,
        planner: Planner,
        sandboxes: Sandboxes,
        execution: Execution,
        files: FileOperations,
        store: Store,
    ) -> None:
        self._planner = planner
        self._sandboxes = sandboxes
        self._execution = execution
        self._files = files
        self._store = store

    @asynccontextmanager
    async def open(
        self, image: Image, backend: str, mounts: tuple[HostMount, ...], *, disk_bytes: int
    ) -> AsyncIterator[PackageSandbox]:
        limits = {"workspace_mb": min(_MOST_MB, disk_bytes // MIB + 64)}
        plan = await self._planner.plan(
            CreateRequest(
                SandboxOptions(backend=backend, limits=limits, profile="hardened", network="none")
            ),
            image=image,
        )
        longest_s = plan.spec.limits.max_exec_timeout_s
        sees_files = True
        if plan.backend.capabilities.remote:
            sees_files = await (await backend_part(plan.backend, Remote)).sees_files()
        plan = replace(
            plan,
            spec=replace(
                plan.spec, env={}, mounts=mounts if sees_files else (), reserve_disk=False
            ),
            lease=replace(plan.lease, idle_timeout_s=longest_s, lifetime_s=longest_s * 2),
            mounts=(),
        )
        record = await self._sandboxes.make(plan, acquired="internal")
        try:
            copied = {} if sees_files else {mount.target: Path(mount.source) for mount in mounts}
            yield PackageSandbox(record.id, longest_s, self._execution, self._files, copied)
        finally:
            await finish(self._remove(record.id))

    async def mounted(self) -> frozenset[str]:
        return frozenset(mount.name for row in await self._store.list() for mount in row.mounts)

    async def _remove(self, sandbox_id: str) -> None:
        # The row is marked, and the reaper and the lease do the rest.
        with suppress(SandkastenError):
            await self._sandboxes.destroy(sandbox_id)


class PackageSandbox:
    """Implements `ports.Site`. `copied` are directories of this machine that are not mounted."""

    def __init__(
        self,
        sandbox_id: str,
        longest_s: float,
        execution: Execution,
        files: FileOperations,
        copied: Mapping[str, Path],
    ) -> None:
        self._copied = copied
        self._id = sandbox_id
        self._longest_s = longest_s
        self._execution = execution
        self._files = files

    async def run(
        self, command: tuple[str, ...], *, env: Mapping[str, str], timeout_s: float
    ) -> ExecResult:
        request = ExecRequest(
            command, env=env, timeout_seconds=max(1.0, min(timeout_s, self._longest_s))
        )
        return await self._execution.run(self._id, request)

    async def shown(self, target: str) -> str:
        source = self._copied.get(target)
        if source is None:
            return target
        inside = f"{WORKSPACE}/{target.rpartition('/')[2]}"
        with translated("read what packages are installed from"):
            await self._files.tar_in(self._id, inside, packed(source))
        return inside

    def tar(self, path: str) -> AsyncIterator[bytes]:
        return self._files.tar_out(self._id, path)
