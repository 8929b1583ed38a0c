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
)
from sandkasten.linux import hostvolume, processes, requirements, seccomp, seccomp_oci
from sandkasten.linux.layout import CellState, write_state
from sandkasten.linux.programs import Programs
from sandkasten.linux.turns import turn
from sandkasten.model.ids import SandboxId
from sandkasten.model.readiness import Readiness, Requirement
from sandkasten.model.spec import CellSpec, home

from . import config, names, places, probe, refusals, trial
from .address import address_of
from .cell import DockerCell, is_running
from .client import EngineClient, Refused, translated
from .detection import PROBE_PREFIX, Detection
from .images import EngineImages, gone
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
_PROBING = "probing"
# How long what could not be made is waited for, to be taken away at once.
_UNDO_S = 15.0


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
            # What the engine is at cannot be stopped half-way; wait for its end, then undo it. One
            # that hangs is not waited for: the record says what is left, to whoever comes next.
            with contextlib.suppress(SandkastenError, TimeoutError):
                async with asyncio.timeout(_UNDO_S):
                    await asyncio.shield(making)
                    await asyncio.shield(self._remove(sandbox_id))
            if not making.done():
                making.cancel()
                making.add_done_callback(_seen)
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
        found = await self._everything()
        if any(_kind(one) == names.PROBE for one in found) or self._probed():
            await self._clear_probes()
        told = {
            names.id_in((one.get("Labels") or {}).get(names.LABEL_ID, ""))
            for one in found
            if _kind(one) == names.CELL
        }
        return sorted(
            one for one in {*written, *told} if one is not None and not one.startswith(_TRIAL)
        )

    async def _everything(self) -> list[Mapping[str, Any]]:
        """Containers and volumes of this installation."""
        whose = f"{names.LABEL_OWNER}={await self._whose()}"
        containers, volumes = await asyncio.gather(
            self._ask(self._engine.containers(whose), "containers"),
            self._ask(self._engine.volumes(whose), "volumes"),
        )
        return [*containers, *volumes]

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
        detection = self._detection
        mark = self._home.root / f"place-{self._key(info)}"
        known = await asyncio.to_thread(_read_place, mark)
        if known is None:
            async with turn(self._home.root / _PROBING):
                known = await detection.find(info)
                if known.mode != "archive":
                    await self._injection.ensure(detection)
            await asyncio.to_thread(self._home.mark, mark.name, json.dumps(asdict(known)))
        self._info, self._place = info, known

    def _probed(self) -> list[Path]:
        """Directories that were offered to the engine, and are not taken away."""
        tops = {self._home.cells, Path(self._place.ours if self._place else self._home.cells)}
        return [one for top in tops if str(top) for one in top.glob(f"{PROBE_PREFIX}*")]

    async def _clear_probes(self) -> None:
        """What is there while nobody has the turn was left by somebody who was killed."""
        async with turn(self._home.root / _PROBING):
            for one in await self._everything():
                if _kind(one) != names.PROBE:
                    continue
                if "Id" in one:
                    await self._ask(self._engine.remove(str(one["Id"])), "a container")
                else:
                    await places.remove_volumes(self._engine, str(one["Name"]))
            for left in self._probed():
                await asyncio.to_thread(hostvolume.release, left)

    async def _prepare(self, spec: CellSpec) -> None:
        """Once for each kind of sandbox: a throw-away one was as closed as it must be."""
        async with self._preparing:
            await self._settle()
            assert self._place is not None
            refusals.check(spec, self._info, self._place)
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
        except BaseException as exc:
            # An engine that did not answer just now is not asked the next thing.
            if not (isinstance(exc, BackendUnavailable) and exc.details.get("backend")):
                with contextlib.suppress(SandkastenError, TimeoutError):
                    async with asyncio.timeout(_UNDO_S):
                        await asyncio.shield(self._remove(sandbox_id))
            raise

    async def _fill(self, sandbox_id: SandboxId, spec: CellSpec, record: CellRecord) -> DockerCell:
        place = record.place
        image = await self._images.reference(spec.image)
        await places.make(place, self._engine, sandbox_id, self._owner, spec)
        declared = await self._images.volumes(spec.image, image)
        refusals.check_volumes(spec, place, declared)
        ground = self._ground(sandbox_id, spec, image, declared)
        try:
            cell = await self._begun(sandbox_id, spec, record, ground)
        except BackendUnavailable:
            if place.mode == "archive" or not await self._mended():
                raise
            await self._engine.remove(names.container_name(sandbox_id))
            cell = await self._begun(sandbox_id, spec, record, ground)
        if spec.workspace is not None:
            await asyncio.to_thread(self._tell_relatives, cell, spec.workspace.path)
        return cell

    async def _begun(
        self, sandbox_id: SandboxId, spec: CellSpec, record: CellRecord, ground: config.Ground
    ) -> DockerCell:
        """Made, started, and answering."""
        told = config.container(sandbox_id, spec, ground)
        container = await self._make(sandbox_id, spec, told)
        try:
            await self._check_links(container, spec, ground.image_volumes)
            if record.place.mode == "archive":
                await self._injection.put_into(container)
            await self._engine.start(container)
        except Refused as exc:
            raise refusals.unstarted(sandbox_id, spec, exc) from exc
        cell = DockerCell(sandbox_id, self._engine, record, container, self._remove)
        self._made[sandbox_id] = cell
        try:
            await cell.greet()
            await cell.check_alive()
        except SandboxLost as exc:
            why = await self._last_words(container) or exc.message
            raise refusals.odd_environment(spec, why) or BackendUnavailable(
                f"sandbox {sandbox_id} ended as soon as it began: {why}",
                hint="run sandkasten doctor",
            ) from exc
        return cell

    async def _mended(self) -> bool:
        """Whether the runner was at fault that nothing began, and is whole again.

        Somebody clears away volumes that nothing uses; a copy ends half-way with its engine.
        """
        try:
            async with turn(self._home.root / _PROBING):
                return await self._injection.ensure(self._detection, whole=True)
        except SandkastenError:
            return False

    @property
    def _detection(self) -> Detection:
        return Detection(self._engine, self._options, self._home.cells, self._owner)

    async def _make(self, sandbox_id: SandboxId, spec: CellSpec, told: dict[str, Any]) -> str:
        name = names.container_name(sandbox_id)
        try:
            return await self._engine.create(name, told)
        except Refused as exc:
            if exc.not_there:
                raise gone(spec.image, exc.message) from exc
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

    async def _check_links(self, container: str, spec: CellSpec, volumes: Sequence[str]) -> None:
        """A volume that a link of the image leads elsewhere would be mounted there: over our own
        runner, too. InvalidImage."""
        for path in volumes:
            above = [str(one) for one in Path(path).parents if one != Path("/")]
            for one in (path, *above):
                if await self._engine.is_link(container, one):
                    raise InvalidImage(
                        f"image {spec.image.name} declares a volume at {path[:200]}, and {one} "
                        "is a link",
                        hint="build it without that VOLUME, or use another image",
                        image=spec.image.name,
                    )

    def _ground(
        self, sandbox_id: SandboxId, spec: CellSpec, image: str, declared: tuple[str, ...]
    ) -> config.Ground:
        assert self._place is not None
        archive = self._place.mode == "archive"
        mounted = (
            *places.mounts(self._place, sandbox_id, home=home(spec)),
            *places.host_mounts(self._place, spec.mounts),
        )
        return config.Ground(
            owner=self._owner,
            image=image,
            mounts=mounted if archive else (self._injection.mount, *mounted),
            seccomp=seccomp_oci.profile(seccomp.machine()),
            image_volumes=declared,
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

    async def _remove(self, sandbox_id: SandboxId) -> None:
        """End it and take away everything. Twice is fine; so is a half-made one."""
        made = self._made.pop(sandbox_id, None)
        if made is not None:
            await made.let_go()
        mine = await self._mine()
        record = await asyncio.to_thread(self._home.read, sandbox_id)
        labels = (*mine, f"{names.LABEL_ID}={sandbox_id}")
        containers = await self._ask(self._engine.containers(*labels), "containers")
        for one in containers:
            await self._ask(self._engine.remove(str(one["Id"])), "a container")
        if record is not None:
            await places.remove_directories(record.place, sandbox_id)
        # By what they say of themselves, and never by name: somebody else may use such a one.
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


def _seen(task: asyncio.Future[DockerCell]) -> None:
    """Its failure is of no more interest: whoever wanted it has gone."""
    if not task.cancelled():
        task.exception()


def _kind(one: Mapping[str, Any]) -> str:
    return str((one.get("Labels") or {}).get(names.LABEL, ""))


def _read_place(mark: Path) -> Place | None:
    try:
        return Place(**json.loads(mark.read_text()))
    except (OSError, ValueError, TypeError):
        return None
