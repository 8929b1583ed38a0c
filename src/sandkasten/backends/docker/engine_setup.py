"""What sandboxes stand on at an engine: looked at, found out once, and tried before it is used.

Verdicts are kept in files that are named after all they depend on, so that another process of the
same installation need not ask again. Knows how a sandbox is made only by a function it is given.
Raises BackendUnavailable, IsolationRefused and UnsupportedByBackend.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import platform
import secrets
import socket
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandkasten.backends.docker import (
    container_config,
    probe,
    resource_names,
    selftest,
    session_volumes,
    unsupported,
)
from sandkasten.backends.docker.engine.engine_client import asked
from sandkasten.backends.docker.engine.engine_detection import PROBE_PREFIX, Detection
from sandkasten.backends.docker.session_volumes import Place
from sandkasten.disk.file_lock import locked
from sandkasten.disk.process_identity import boot_id
from sandkasten.errors import SandkastenError
from sandkasten.linux import host_requirements
from sandkasten.linux.storage import host_volume
from sandkasten.model.ids import SandboxId
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.readiness import Readiness, Requirement

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from sandkasten.backends.docker.cell import DockerCell
    from sandkasten.backends.docker.cell_record import Home
    from sandkasten.backends.docker.docker_options import Options
    from sandkasten.backends.docker.engine.engine_client import EngineClient
    from sandkasten.backends.docker.runner_volume import Injection
    from sandkasten.model.sandbox.limits import Unenforced

    Create = Callable[[SandboxId, CellSpec], Awaitable[DockerCell]]
    Remove = Callable[[SandboxId], Awaitable[None]]

TRIAL = "trial_"
_PROBING = "probing"


class Footing:
    def __init__(
        self, engine: EngineClient, options: Options, home: Home, injection: Injection
    ) -> None:
        self._engine = engine
        self._options = options
        self._home = home
        self._injection = injection
        self._place: Place | None = None
        self._info: Mapping[str, Any] = {}
        self._prepared: set[str] = set()
        self._preparing = asyncio.Lock()
        self._owner = ""

    @property
    def place(self) -> Place:
        assert self._place is not None, "settle first"
        return self._place

    @property
    def unenforced(self) -> tuple[Unenforced, ...]:
        return probe.unenforced(self._info, sized=self.place.sized)

    async def owner(self) -> str:
        """Whose the things in an engine are that this installation made."""
        if not self._owner:
            self._owner = await asyncio.to_thread(self._home.prepare)
        return self._owner

    async def detection(self) -> Detection:
        return Detection(self._engine, self._options, self._home.cells, await self.owner())

    async def look(self) -> Readiness:
        engine = self._engine
        version, info = await asyncio.gather(
            asked(engine.version(), "its version"), asked(engine.info(), "its state")
        )
        lines = [
            probe.reachable(engine.address, version),
            probe.api_version(version),
            probe.engine_mode(engine.address, self._options.engine),
            probe.operating_system(info, platform.machine()),
            probe.storage_driver(info),
            probe.cgroup_version(info),
            probe.seccomp(info),
            probe.user_ids(info),
        ]
        found = host_requirements.verdict(lines, probe.unenforced(info, sized=False))
        if not found.ready:
            return found
        try:
            await self._settle(info)
        except SandkastenError as exc:
            lines.append(Requirement("workspaces", False, exc.message, exc.hint))
            return host_requirements.verdict(lines, ())
        lines.append(probe.workspace(self.place))
        return host_requirements.verdict(lines, self.unenforced)

    async def _settle(self, info: Mapping[str, Any] | None = None) -> None:
        """Where files lie and that the runner is there: once for this object."""
        if self._place is not None:
            return
        info = await asked(self._engine.info(), "its state") if info is None else info
        detection = await self.detection()
        mark = self._home.root / f"place-{self._key(info)}"
        known = await asyncio.to_thread(_read_place, mark)
        if known is None:
            async with self.probing():
                known = await detection.find(info)
                if known.mode != "archive":
                    await self._injection.ensure(detection)
            await asyncio.to_thread(self._home.mark, mark.name, json.dumps(asdict(known)))
        self._info, self._place = info, known

    def probing(self) -> AbstractAsyncContextManager[None]:
        """One of this installation at a time asks an engine by offering it things."""
        return locked(self._home.root / _PROBING)

    def probed(self) -> list[Path]:
        """Directories that were offered to the engine, and are not taken away."""
        tops = {self._home.cells, Path(self._place.ours if self._place else self._home.cells)}
        return [one for top in tops if str(top) for one in top.glob(f"{PROBE_PREFIX}*")]

    async def clear_probes(self) -> None:
        """What is there while nobody has the turn was left by somebody who was killed."""
        async with self.probing():
            mine = (
                f"{resource_names.LABEL}={resource_names.PROBE}",
                f"{resource_names.LABEL_OWNER}={await self.owner()}",
            )
            for one in await asked(self._engine.containers(*mine), "containers"):
                await asked(self._engine.remove(str(one["Id"])), "a container")
            volumes = await asked(self._engine.volumes(*mine), "volumes")
            await session_volumes.remove_volumes(
                self._engine, *(str(one["Name"]) for one in volumes)
            )
            for left in await asyncio.to_thread(self.probed):
                await asyncio.to_thread(host_volume.release, left)

    async def prepare(self, spec: CellSpec, create: Create, remove: Remove) -> None:
        """Once for each kind of sandbox: a throw-away one was as closed as it must be."""
        async with self._preparing:
            await self._settle()
            unsupported.check(spec, self._info, self.place)
            if spec.profile in self._prepared:
                return
            mark = self._home.root / f"trial-{self._key(self._info)}-{spec.profile}"
            async with locked(self._home.root / "trial"):
                if not await asyncio.to_thread(mark.exists):
                    await self._try(spec, create, remove)
                    await asyncio.to_thread(self._home.mark, mark.name, "")
            self._prepared.add(spec.profile)

    async def _try(self, spec: CellSpec, create: Create, remove: Remove) -> None:
        # One at a time, so what is there was left by a process that was killed meanwhile.
        for left in self._home.ids():
            if left.startswith(TRIAL):
                await remove(left)
        sandbox_id = SandboxId(TRIAL + secrets.token_hex(8))
        # Nothing of the caller's: no workspace that somebody keeps, no mounts, no environment.
        cell = await create(sandbox_id, CellSpec(image=spec.image, profile=spec.profile))
        try:
            await selftest.examine(
                cell, writable_root=self.place.mode == "archive", dev=spec.profile == "dev"
            )
        finally:
            await asyncio.shield(cell.destroy())

    def _key(self, info: Mapping[str, Any]) -> str:
        """All that a verdict about an engine depends on; another engine has another id."""
        parts = [
            boot_id(),
            # In a container: another one, with other mounts, has another name.
            socket.gethostname(),
            str(info.get("ID", "")),
            str(info.get("ServerVersion", "")),
            repr(self._options),
            self._injection.digest,
            str(self._home.root),
        ]
        for module in (selftest, container_config, session_volumes):
            found = Path(str(module.__file__)).stat()
            parts.append(f"{found.st_mtime_ns}:{found.st_size}")
        return hashlib.sha256("|".join(parts).encode()).hexdigest()[:24]


def _read_place(mark: Path) -> Place | None:
    try:
        return Place(**json.loads(mark.read_text()))
    except (OSError, ValueError, TypeError):
        return None
