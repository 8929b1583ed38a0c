"""What sandboxes need at an engine: detected once and tried before first use.

Verdicts are kept in files named after everything they depend on, so that another process of the
same installation need not ask again. Creates sandboxes only through a callback.
Raises BackendUnavailable, IsolationRefused and UnsupportedByBackend.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import platform
import secrets
import socket
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandkasten.disk.cleanup import finish
from sandkasten.disk.file_lock import locked, try_lock_path
from sandkasten.disk.process_identity import boot_id
from sandkasten.errors import SandkastenError, UnsupportedByBackend
from sandkasten.model.ids import SandboxId
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.readiness import Readiness, Requirement
from sandkasten_docker import (
    container_config,
    container_network,
    probe,
    resource_names,
    selftest,
    session_volumes,
    unsupported,
)
from sandkasten_docker.docker_engine.docker_client import asked
from sandkasten_docker.docker_engine.workspace_mode import (
    PROBE_PREFIX,
    PROBES_IN_USE,
    WorkspaceModes,
)
from sandkasten_docker.session_volumes import SessionVolumes
from sandkasten_runtime.linux import host_requirements
from sandkasten_runtime.linux.storage import host_volume

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from sandkasten.model.sandbox.limits import Unenforced
    from sandkasten_docker.cell import DockerCell
    from sandkasten_docker.cell_record import DockerDirectory
    from sandkasten_docker.docker_engine.docker_client import DockerClient
    from sandkasten_docker.docker_options import DockerOptions
    from sandkasten_docker.runner_volume import RunnerVolume

    Create = Callable[[SandboxId, CellSpec], Awaitable[DockerCell]]
    Remove = Callable[[SandboxId], Awaitable[None]]

TRIAL = "trial_"
_PROBING = "probing"


class DockerSetup:
    def __init__(
        self,
        api: DockerClient,
        options: DockerOptions,
        home: DockerDirectory,
        injection: RunnerVolume,
    ) -> None:
        self._api = api
        self._options = options
        self._home = home
        self._injection = injection
        self._place: SessionVolumes | None = None
        self._info: Mapping[str, Any] = {}
        self._prepared: set[str] = set()
        self._preparing = asyncio.Lock()
        self._owner = ""

    @property
    def place(self) -> SessionVolumes:
        assert self._place is not None, "settle first"
        return self._place

    @property
    def unenforced(self) -> tuple[Unenforced, ...]:
        sized = self.place.sized or self.place.sized_volumes
        return probe.unenforced(self._info, sized=sized)

    @property
    def separate_sockets(self) -> bool:
        return probe.separate_sockets(self._info)

    def network_refusal(self) -> UnsupportedByBackend | None:
        """Return why sandboxes of this engine cannot have a network; None if they can."""
        volumes = self.place.mode != "archive"
        return container_network.refusal(self._info, self._api.address.backend, volumes=volumes)

    async def can_enter(self) -> bool:
        """Return whether we can enter the namespaces of its containers."""
        return await asyncio.to_thread(container_network.can_enter, self._api.address)

    async def owner(self) -> str:
        """The owner label of this installation's resources in an engine."""
        if not self._owner:
            self._owner = await asyncio.to_thread(self._home.prepare)
        return self._owner

    async def detection(self) -> WorkspaceModes:
        return WorkspaceModes(self._api, self._options, self._home.cells, await self.owner())

    async def look(self) -> Readiness:
        api = self._api
        # One after the other: a task that is cancelled before it starts never awaits its question.
        version = await asked(api.version(), "its version")
        info = await asked(api.info(), "its state")
        lines = [
            probe.reachable(api.address, version),
            probe.api_version(version),
            probe.docker_mode(api.address, self._options.mode),
            probe.operating_system(info, platform.machine()),
            probe.storage_driver(info),
            probe.cgroup_version(info),
            probe.seccomp(info),
            probe.user_ids(info),
        ]
        verdict = host_requirements.verdict(lines, probe.unenforced(info, sized=False))
        if not verdict.ready:
            return verdict
        try:
            await self.settle(info)
        except SandkastenError as exc:
            lines.append(Requirement("workspaces", False, exc.message, exc.hint))
            return host_requirements.verdict(lines, ())
        lines.append(probe.workspace(self.place))
        lines.append(probe.socket_memory(info, local=self.place.sized))
        lines.append(probe.network(self.network_refusal(), entered=await self.can_enter()))
        return host_requirements.verdict(lines, self.unenforced)

    async def settle(self, info: Mapping[str, Any] | None = None) -> None:
        """Detect where files are kept and provide the runner: once per object."""
        if self._place is not None:
            return
        info = await asked(self._api.info(), "its state") if info is None else info
        detection = await self.detection()
        mark = self._home.root / f"place-{self._key(info)}"
        place = await asyncio.to_thread(_read_place, mark)
        if place is None:
            async with self.probing():
                place = await detection.find(info)
                if place.mode != "archive":
                    await self._injection.ensure(detection)
            await asyncio.to_thread(self._home.mark, mark.name, json.dumps(asdict(place)))
        self._info, self._place = info, place

    async def settled(self) -> SessionVolumes:
        async with self._preparing:
            await self.settle()
        return self.place

    def probing(self) -> AbstractAsyncContextManager[None]:
        """Lock: one process of this installation at a time probes an engine."""
        return locked(self._home.root / _PROBING)

    def probed(self) -> list[Path]:
        """Directories that were offered to the engine and are not removed yet."""
        tops = {self._home.cells, Path(self._place.ours if self._place else self._home.cells)}
        return [path for top in tops if str(top) for path in top.glob(f"{PROBE_PREFIX}*")]

    async def clear_probes(self) -> None:
        """Remove what a killed process left of its probes and copies."""
        async with self.probing():
            label_filters = (
                f"{resource_names.LABEL}={resource_names.PROBE}",
                f"{resource_names.LABEL_OWNER}={await self.owner()}",
            )
            # A copy into a volume can take minutes, which the reaper must not wait for: whatever
            # is left now is removed in another pass.
            unused = try_lock_path(self._home.root / PROBES_IN_USE)
            if unused is None:
                return
            try:
                for container in await asked(self._api.containers(*label_filters), "containers"):
                    await asked(self._api.remove(str(container["Id"])), "a container")
            finally:
                os.close(unused)
            volumes = await asked(self._api.volumes(*label_filters), "volumes")
            await session_volumes.remove_volumes(
                self._api, *(str(volume["Name"]) for volume in volumes)
            )
            for path in await asyncio.to_thread(self.probed):
                await asyncio.to_thread(host_volume.release, path)

    async def prepare(self, spec: CellSpec, create: Create, remove: Remove) -> None:
        """Verify once per kind of sandbox, with a temporary one, that it is as closed as
        required.
        """
        async with self._preparing:
            await self.settle()
            unsupported.check(spec, self._info, self.place, self._api.address.section)
            if spec.profile in self._prepared:
                return
            mark = self._home.root / f"trial-{self._key(self._info)}-{spec.profile}"
            async with locked(self._home.root / "trial"):
                if not await asyncio.to_thread(mark.exists):
                    await self._try(spec, create, remove)
                    await asyncio.to_thread(self._home.mark, mark.name, "")
            self._prepared.add(spec.profile)

    async def _try(self, spec: CellSpec, create: Create, remove: Remove) -> None:
        # One process at a time, so what exists was left by a process that was killed meanwhile.
        for leftover in self._home.ids():
            if leftover.startswith(TRIAL):
                await remove(leftover)
        sandbox_id = SandboxId(TRIAL + secrets.token_hex(8))
        # Nothing of the caller's: no named workspace, no mounts, no environment.
        cell = await create(sandbox_id, CellSpec(image=spec.image, profile=spec.profile))
        try:
            await selftest.examine(
                cell, writable_root=self.place.mode == "archive", dev=spec.profile == "dev"
            )
        finally:
            await finish(cell.destroy())

    def _key(self, info: Mapping[str, Any]) -> str:
        """Return the key of a verdict: everything it depends on. Another engine has another id."""
        parts = [
            boot_id(),
            # In a container: another container, with other mounts, has another hostname.
            socket.gethostname(),
            str(info.get("ID", "")),
            str(info.get("ServerVersion", "")),
            repr(self._options),
            self._injection.digest,
            str(self._home.root),
        ]
        for module in (selftest, container_config, session_volumes):
            status = Path(str(module.__file__)).stat()
            parts.append(f"{status.st_mtime_ns}:{status.st_size}")
        return hashlib.sha256("|".join(parts).encode()).hexdigest()[:24]


def _read_place(mark: Path) -> SessionVolumes | None:
    try:
        return SessionVolumes(**json.loads(mark.read_text()))
    except (OSError, ValueError, TypeError):
        return None
