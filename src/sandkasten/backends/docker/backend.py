"""The docker backend: containers of an engine that may be here, beside us, or far away.

Knows isolation and nothing else. Each sandbox is one container whose first process is our runner,
with a workspace as `places` has it; all of it carries our labels, and is written down on our disk
before it is made. Nothing here is a parent of a sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import json
import platform
import secrets
import socket
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from sandkasten.errors import (
    BackendUnavailable,
    Conflict,
    InvalidImage,
    SandboxLost,
    SandkastenError,
    UnsupportedByBackend,
)
from sandkasten.linux import processes, requirements, seccomp, seccomp_oci
from sandkasten.linux.layout import CellState, write_state
from sandkasten.linux.programs import Programs
from sandkasten.linux.turns import turn
from sandkasten.model.ids import SandboxId
from sandkasten.model.readiness import Readiness, Requirement
from sandkasten.model.spec import CellSpec, home

from . import config, names, places, probe, trial
from .address import address_of
from .cell import DockerCell, is_running
from .client import EngineClient, Refused, translated
from .detection import Detection, user_namespaces
from .images import EngineImages
from .injection import Injection
from .options import Options
from .places import Place
from .state import CellRecord, Home

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.model.image import Image
    from sandkasten.ports import ImagePacker

_LIBRARY = "aiodocker"
_TRIAL = "trial_"
_NO_RUNNER = "no such file or directory"
# What the runner says of an image in which its own program could be replaced.
_UNGUARDED = "not for root alone"


class DockerBackend:
    """See `ports.Backend`, `ports.Discards` and `ports.KeepsImages`."""

    def __init__(
        self,
        data_dir: Path,
        options: Options | None = None,
        *,
        packer: ImagePacker | None = None,
        runner: Path | None = None,
    ) -> None:
        self._options = options or Options()
        self._home = Home(data_dir / self.name)
        self._packer = packer
        self._runner = Programs.found(runner, None).runner
        self._owner = ""
        self._place: Place | None = None
        self._info: Mapping[str, Any] = {}
        self._prepared: set[str] = set()
        self._preparing = asyncio.Lock()
        # Each may still hold the connection that greeted it, when somebody else removes it.
        self._made: WeakValueDictionary[SandboxId, DockerCell] = WeakValueDictionary()

    @property
    def name(self) -> str:
        return "docker"

    @cached_property
    def _engine(self) -> EngineClient:
        if importlib.util.find_spec(_LIBRARY) is None:
            raise BackendUnavailable(
                "the docker backend needs the library aiodocker",
                hint="pip install 'sandkasten[docker]'",
            )
        return EngineClient(address_of(self._options), self._options.timeout_s)

    @cached_property
    def _images(self) -> EngineImages:
        return EngineImages(self._engine, self._options, self._packer)

    @cached_property
    def _injection(self) -> Injection:
        return Injection(self._engine, self._runner)

    # ---- the verbs

    async def probe(self) -> Readiness:
        try:
            return await self._look()
        except SandkastenError as exc:
            line = Requirement("engine", False, exc.message, exc.hint)
            return Readiness(False, exc.message, exc.hint, (line,))

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> DockerCell:
        await self._prepare(spec)
        making = asyncio.ensure_future(self._create(sandbox_id, spec))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            # What the engine is at cannot be stopped half-way; wait for its end, then undo it.
            with contextlib.suppress(SandkastenError):
                await asyncio.shield(making)
                await asyncio.shield(self._remove(sandbox_id))
            raise

    async def attach(self, sandbox_id: SandboxId) -> DockerCell:
        found = await self._found(sandbox_id)
        record = await asyncio.to_thread(self._home.read, sandbox_id)
        # Without a record of ours there is still a way in that needs none.
        record = record or CellRecord(Place("volume", "as it was found"))
        return DockerCell(sandbox_id, self._engine, record, str(found["Id"]), self._remove)

    async def owned(self) -> Sequence[SandboxId]:
        written = await asyncio.to_thread(self._home.ids)
        if not self._home.root.exists():
            return ()
        mine = await self._mine()
        containers, volumes = await asyncio.gather(
            self._ask(self._engine.containers(*mine), "containers"),
            self._ask(self._engine.volumes(*mine), "volumes"),
        )
        told = {
            names.id_in((one.get("Labels") or {}).get(names.LABEL_ID, ""))
            for one in (*containers, *volumes)
        }
        return sorted(
            one for one in {*written, *told} if one is not None and not one.startswith(_TRIAL)
        )

    async def discard(self, sandbox_id: SandboxId) -> None:
        """What `destroy` does, for a sandbox that is not alive any more."""
        await self._remove(sandbox_id)

    async def find_image(self, names: Sequence[str]) -> Image | None:
        """See `ports.KeepsImages`."""
        return await self._images.find(names)

    async def bring_image(self, image: Image) -> None:
        await self._images.reference(image)

    async def aclose(self) -> None:
        if "_engine" in self.__dict__:
            await self._engine.aclose()

    # ---- before the first

    async def _look(self) -> Readiness:
        engine = self._engine
        version, info = await asyncio.gather(
            self._ask(engine.version(), "its version"), self._ask(engine.info(), "its state")
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
        found = requirements.verdict(lines, probe.unenforced(info, sized=False))
        if not found.ready:
            return found
        try:
            await self._settle(info)
        except SandkastenError as exc:
            lines.append(Requirement("workspaces", False, exc.message, exc.hint))
            return requirements.verdict(lines, ())
        assert self._place is not None
        lines.append(probe.workspace(self._place))
        return requirements.verdict(lines, probe.unenforced(info, sized=self._place.sized))

    async def _settle(self, info: Mapping[str, Any] | None = None) -> None:
        """Where files lie and that the runner is there: once for this object."""
        if self._place is not None:
            return
        info = await self._ask(self._engine.info(), "its state") if info is None else info
        self._owner = await asyncio.to_thread(self._home.prepare)
        detection = Detection(self._engine, self._options, self._home.cells, self._owner)
        mark = self._home.root / f"place-{self._key(info)}"
        known = await asyncio.to_thread(_read_place, mark)
        if known is None:
            known = await detection.find(info)
            if known.mode != "archive":
                await self._injection.ensure(detection)
            await asyncio.to_thread(self._home.mark, mark.name, json.dumps(asdict(known)))
        self._info, self._place = info, known

    async def _prepare(self, spec: CellSpec) -> None:
        """Once for each kind of sandbox: a throw-away one was as closed as it must be."""
        async with self._preparing:
            await self._settle()
            assert self._place is not None
            _refuse(spec, self._info, self._place)
            if spec.profile in self._prepared:
                return
            mark = self._home.root / f"trial-{self._key(self._info)}-{spec.profile}"
            async with turn(self._home.root / "trial"):
                if not await asyncio.to_thread(mark.exists):
                    await self._try(spec)
                    await asyncio.to_thread(self._home.mark, mark.name, "")
            self._prepared.add(spec.profile)

    async def _try(self, spec: CellSpec) -> None:
        # One at a time, so what is there was left by a process that was killed meanwhile.
        for left in self._home.ids():
            if left.startswith(_TRIAL):
                await self._remove(left)
        sandbox_id = SandboxId(_TRIAL + secrets.token_hex(8))
        # Nothing of the caller's: no workspace that somebody keeps, no mounts, no environment.
        cell = await self._create(sandbox_id, CellSpec(image=spec.image, profile=spec.profile))
        try:
            assert self._place is not None
            await trial.examine(
                cell, writable_root=self._place.mode == "archive", dev=spec.profile == "dev"
            )
        finally:
            await asyncio.shield(cell.destroy())

    def _key(self, info: Mapping[str, Any]) -> str:
        """All that a verdict about an engine depends on; another engine has another id."""
        parts = [
            processes.boot_id(),
            # In a container: another one, with other mounts, has another name.
            socket.gethostname(),
            str(info.get("ID", "")),
            str(info.get("ServerVersion", "")),
            repr(self._options),
            self._injection.digest,
            str(self._home.root),
        ]
        for module in (trial, config, places):
            found = Path(str(module.__file__)).stat()
            parts.append(f"{found.st_mtime_ns}:{found.st_size}")
        return hashlib.sha256("|".join(parts).encode()).hexdigest()[:24]

    # ---- one sandbox

    async def _create(self, sandbox_id: SandboxId, spec: CellSpec) -> DockerCell:
        assert self._place is not None
        unenforced = probe.unenforced(self._info, sized=self._place.sized)
        lost = tuple((u.limit, u.reason, u.remedy) for u in unenforced)
        record = CellRecord(self._place, lost)
        # On disk before any of it exists, so that whoever comes after a crash can take it away.
        await asyncio.to_thread(self._home.begin, sandbox_id, record)
        try:
            return await self._fill(sandbox_id, spec, record)
        except BaseException:
            with contextlib.suppress(SandkastenError):
                await asyncio.shield(self._remove(sandbox_id))
            raise

    async def _fill(self, sandbox_id: SandboxId, spec: CellSpec, record: CellRecord) -> DockerCell:
        place = record.place
        # Before anything is made for it; kept for the container that follows.
        await self._images.reference(spec.image)
        await places.make(place, sandbox_id, spec)
        for again in (True, False):
            container = await self._make(sandbox_id, spec)
            try:
                if place.mode == "archive":
                    await self._injection.put_into(container)
                await self._engine.start(container)
            except Refused as exc:
                if not again or place.mode == "archive" or _NO_RUNNER not in exc.message.lower():
                    raise _unstarted(sandbox_id, exc) from exc
                # Somebody cleared away volumes that nothing used: the runner was in one of them.
                await self._engine.remove(container)
                await self._injection.ensure(
                    Detection(self._engine, self._options, self._home.cells, self._owner)
                )
            else:
                break
        cell = DockerCell(sandbox_id, self._engine, record, container, self._remove)
        self._made[sandbox_id] = cell
        try:
            await cell.greet()
        except SandboxLost as exc:
            told_by = await self._last_words(container)
            if _UNGUARDED in told_by:
                raise InvalidImage(
                    f"image {spec.image.name} cannot be used: {told_by}",
                    hint="/run of an image must be a directory that is root's alone, and nothing "
                    "that we mount may be a link",
                    image=spec.image.name,
                ) from exc
            raise BackendUnavailable(
                f"sandbox {sandbox_id} ended as soon as it began: {told_by or exc.message}",
                hint="run sandkasten doctor",
            ) from exc
        if spec.workspace is not None:
            await cell.check_alive()
            await asyncio.to_thread(self._tell_relatives, cell, spec.workspace.path)
        return cell

    async def _make(self, sandbox_id: SandboxId, spec: CellSpec, *, again: bool = True) -> str:
        name = names.container_name(sandbox_id)
        image = await self._images.reference(spec.image)
        told = config.container(sandbox_id, spec, self._ground(sandbox_id, spec, image))
        try:
            return await self._engine.create(name, told)
        except Refused as exc:
            if exc.not_there and again and self._images.forget(spec.image, image):
                # It was given to the engine once, and somebody has removed it there since.
                return await self._make(sandbox_id, spec, again=False)
            if exc.not_there:
                raise InvalidImage(
                    f"the engine has no image {spec.image.name}: {exc.message}",
                    hint="it was removed meanwhile; import or pull it again",
                    image=spec.image.name,
                ) from exc
            if exc.conflict:
                raise Conflict(
                    f"the engine has a container named {name} already",
                    hint="remove it (docker rm), or use another id",
                ) from exc
            raise translated(exc, f"sandbox {sandbox_id} could not be made") from exc

    def _tell_relatives(self, cell: DockerCell, volume: str) -> None:
        """Whoever looks whether somebody lives in a workspace looks for this, on every backend."""
        directory = cell.place.directory(cell.id)
        write_state(directory, CellState(processes.boot_id(), None, (), None, volume=volume))
        started = processes.start_time(cell.pid)
        if started is not None:
            (directory / "pid").write_text(f"{cell.pid} {started}")

    def _ground(self, sandbox_id: SandboxId, spec: CellSpec, image: str) -> config.Ground:
        assert self._place is not None
        archive = self._place.mode == "archive"
        mounted = (
            *places.mounts(self._place, sandbox_id, self._owner, home=home(spec)),
            *places.host_mounts(self._place, spec.mounts),
        )
        return config.Ground(
            owner=self._owner,
            image=image,
            mounts=mounted if archive else (self._injection.mount, *mounted),
            seccomp=seccomp_oci.profile(seccomp.machine()),
            given=self._place.mode != "volume",
            writable_root=archive,
        )

    async def _last_words(self, container: str) -> str:
        try:
            return (await self._engine.logs(container)).strip()
        except (Refused, SandkastenError):
            return ""

    async def _found(self, sandbox_id: SandboxId) -> Mapping[str, Any]:
        try:
            found = await self._engine.inspect(names.container_name(sandbox_id))
        except Refused as exc:
            if exc.not_there:
                raise SandboxLost(
                    f"sandbox {sandbox_id} is not running", hint="create a new one"
                ) from exc
            raise translated(exc, f"sandbox {sandbox_id} cannot be looked at") from exc
        told = (found.get("Config") or {}).get("Labels") or {}
        if told.get(names.LABEL_OWNER) != await self._whose() or not is_running(found):
            raise SandboxLost(f"sandbox {sandbox_id} is not running", hint="create a new one")
        return found

    async def _remove(self, sandbox_id: SandboxId, container: str = "") -> None:
        """End it and take away everything. Twice is fine; so is a half-made one.

        `container`: of one that was made to its end. Its record says what else there is, and no
        list is asked for; of any other one, all that carries its labels is looked for.
        """
        made = self._made.pop(sandbox_id, None)
        if made is not None:
            await made.let_go()
        record = await asyncio.to_thread(self._home.read, sandbox_id)
        labels = (*await self._mine(), f"{names.LABEL_ID}={sandbox_id}")
        found = [container]
        whole = bool(container) and record is not None
        if not whole:
            containers = await self._ask(self._engine.containers(*labels), "containers")
            found = [str(one["Id"]) for one in containers]
        for one in found:
            await self._ask(self._engine.remove(one), "a container")
        if record is not None:
            await places.remove(record.place, self._engine, sandbox_id)
        if not whole:
            volumes = await self._ask(self._engine.volumes(*labels), "volumes")
            await places.remove_volumes(self._engine, *(str(one["Name"]) for one in volumes))
        await asyncio.to_thread(self._home.end, sandbox_id)

    # ---- small things

    async def _whose(self) -> str:
        if not self._owner:
            self._owner = await asyncio.to_thread(self._home.prepare)
        return self._owner

    async def _mine(self) -> tuple[str, ...]:
        return (f"{names.LABEL}={names.CELL}", f"{names.LABEL_OWNER}={await self._whose()}")

    async def _ask(self, question: Any, about: str) -> Any:
        try:
            return await question
        except Refused as exc:
            raise translated(exc, f"the engine was asked about {about}") from exc


def _refuse(spec: CellSpec, info: Mapping[str, Any], place: Place) -> None:
    """What cannot be had of this engine, said before anything is made."""
    if spec.workspace is not None and not place.sized:
        raise UnsupportedByBackend(
            "named workspaces cannot be had of this engine: they are files of our machine",
            hint="run the daemon as root on the engine's machine (workspace_mode bind), or use "
            "the file store to carry files from one session to the next",
        )
    if spec.profile == "dev" and not user_namespaces(info):
        raise UnsupportedByBackend(
            "the dev profile would be root of the engine's own machine: the engine maps no ids",
            hint="start dockerd with --userns-remap=default, or use the local backend",
        )


def _unstarted(sandbox_id: SandboxId, exc: Refused) -> SandkastenError:
    return translated(exc, f"sandbox {sandbox_id} could not be started")


def _read_place(mark: Path) -> Place | None:
    try:
        return Place(**json.loads(mark.read_text()))
    except (OSError, ValueError, TypeError):
        return None
