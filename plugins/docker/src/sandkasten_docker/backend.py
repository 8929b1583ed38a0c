"""The docker backend: containers of a local, sidecar or remote Docker Engine.

Knows isolation and nothing else. Each sandbox is one container whose first process is our runner,
with a workspace as `session_volumes` provides it. Every resource carries our labels and is recorded
on our disk before it is made. No process here is the parent of a sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from sandkasten.disk.process_identity import boot_id, start_time
from sandkasten.errors import (
    BackendUnavailable,
    Conflict,
    SandboxLost,
    SandkastenError,
    UnsupportedByBackend,
)
from sandkasten.model.optional_extras import install_command
from sandkasten.model.sandbox.cell_spec import CellSpec, home, user_id
from sandkasten.model.sandbox.readiness import Readiness, Requirement
from sandkasten.ports.pull_limits import PullLimits
from sandkasten_docker import (
    container_config,
    container_network,
    session_volumes,
    trust_volume,
    unsupported,
)
from sandkasten_docker import resource_names as names
from sandkasten_docker.capabilities import docker_capabilities
from sandkasten_docker.cell import DockerCell, is_running
from sandkasten_docker.cell_record import CellRecord, DockerDirectory
from sandkasten_docker.content_volumes import ContentVolumes
from sandkasten_docker.docker_engine.docker_address import address_of
from sandkasten_docker.docker_engine.docker_client import DockerClient, Refused, asked, translated
from sandkasten_docker.docker_engine.docker_images import DockerImages, gone
from sandkasten_docker.docker_engine.workspace_mode import PROBE_IMAGE
from sandkasten_docker.docker_options import DockerOptions
from sandkasten_docker.docker_setup import TRIAL, DockerSetup
from sandkasten_docker.egress_containers import EgressContainers
from sandkasten_docker.kept_volumes import KeptVolumes
from sandkasten_docker.runner_volume import RunnerVolume
from sandkasten_docker.session_volumes import SessionVolumes
from sandkasten_runtime.linux.cgroup import cgroups
from sandkasten_runtime.linux.confinement import seccomp_bpf, seccomp_oci
from sandkasten_runtime.linux.programs import Programs
from sandkasten_runtime.linux.state_layout import CellState, write_state
from sandkasten_runtime.linux.trust_files import with_variables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.images.resolved_image import Image
    from sandkasten.model.sandbox.cell_spec import HostMount
    from sandkasten.model.sandbox.network_policy import NetworkPolicy
    from sandkasten.ports import EventSink, ImagePacker
    from sandkasten_runtime.linux.trust_files import Authority

_LIBRARY = "aiodocker"
# How long to wait for a failed create, so that it can be removed at once.
_UNDO_S = 15.0


class DockerBackend:
    """Implements Backend, KeepsImages, KeepsWorkspaces, Remote and RefusesNetworks.

    `name` is `docker`, or `docker/west` for a named engine, which has its own directory.
    """

    def __init__(
        self,
        data_dir: Path,
        options: DockerOptions | None = None,
        *,
        name: str = "docker",
        packer: ImagePacker | None = None,
        runner: Path | None = None,
        pull_limits: PullLimits | None = None,
        events: EventSink | None = None,
    ) -> None:
        self._pull_limits = pull_limits or PullLimits()
        self._events = events
        self._options = options or DockerOptions()
        self.name = name
        self.capabilities = docker_capabilities(self._options)
        self._home = DockerDirectory(data_dir / name.replace("/", "-"))
        self._packer = packer
        self._programs = Programs.found(runner, None)
        # Each cell may still hold its first connection when another process removes it.
        self._made: WeakValueDictionary[SandboxId, DockerCell] = WeakValueDictionary()

    @cached_property
    def _api(self) -> DockerClient:
        if importlib.util.find_spec(_LIBRARY) is None:
            raise BackendUnavailable(
                "the docker backend requires the library aiodocker", hint=install_command("docker")
            )
        return DockerClient(address_of(self._options, self.name), self._options.timeout_s)

    @cached_property
    def _images(self) -> DockerImages:
        return DockerImages(
            self._api,
            self._packer,
            pull=self._options.pull,
            limits=self._pull_limits,
            events=self._events,
        )

    @cached_property
    def _injection(self) -> RunnerVolume:
        return RunnerVolume(self._api, self._programs.runner)

    @cached_property
    def _network_programs(self) -> RunnerVolume:
        others = {"launch": self._programs.launcher, "egress": self._programs.egress}
        return RunnerVolume(self._api, self._programs.runner, others)

    @cached_property
    def _setup(self) -> DockerSetup:
        return DockerSetup(self._api, self._options, self._home, self._injection)

    @cached_property
    def _contents(self) -> ContentVolumes:
        return ContentVolumes(self._api, self._setup, self._home)

    @cached_property
    def _kept(self) -> KeptVolumes:
        return KeptVolumes(self._api, self._setup)

    # ---- the verbs

    async def probe(self) -> Readiness:
        try:
            return await self._setup.look()
        except SandkastenError as exc:
            line = Requirement("engine", False, exc.operator_message, exc.hint)
            return Readiness(False, exc.operator_message, exc.hint, (line,))

    async def ping(self) -> None:
        await self._api.ping()

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> DockerCell:
        refusal = None
        if spec.inspection is not None:
            refusal = container_network.inspection_refusal(self._api.address)
        if refusal is None and not spec.network.closed:
            refusal = await self.network_refusal(spec.network)
        if refusal is not None:
            raise refusal
        await self._setup.prepare(spec, self._create, self._remove)
        making = asyncio.ensure_future(self._create(sandbox_id, spec))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            # A request that the engine works on cannot be stopped half-way: wait for its end, then
            # undo it. If the engine hangs, do not wait: the record lists what is left to remove.
            try:
                with contextlib.suppress(SandkastenError, TimeoutError):
                    async with asyncio.timeout(_UNDO_S):
                        await asyncio.shield(making)
                        await asyncio.shield(self._remove(sandbox_id))
            finally:
                making.cancel()
                making.add_done_callback(_seen)
            raise

    async def sees_files(self) -> bool:
        """Implement `ports.Remote`."""
        return (await self._setup.settled()).same

    async def network_refusal(self, policy: NetworkPolicy) -> UnsupportedByBackend | None:
        """Implement `ports.RefusesNetworks`: it has every network or none."""
        await self._setup.settled()
        return self._setup.network_refusal()

    async def keeps_workspaces(self) -> bool:
        """Implement `ports.KeepsWorkspaces`."""
        return await self._kept.supported()

    async def copy_workspace(self, source: str, target: str) -> None:
        await self._kept.copy(source, target)

    async def remove_workspace(self, name: str) -> None:
        await self._kept.remove(name)

    async def attach(self, sandbox_id: SandboxId) -> DockerCell:
        container = await self._found(sandbox_id)
        record = await asyncio.to_thread(self._home.read, sandbox_id)
        # Without our record, attach through an exec stream, which needs none.
        record = record or CellRecord(SessionVolumes("volume", "as it was found"))
        return self._cell(sandbox_id, record, str(container["Id"]))

    def _cell(self, sandbox_id: SandboxId, record: CellRecord, container: str) -> DockerCell:
        network = (
            EgressContainers(self._api, sandbox_id)
            if record.beside
            else container_network.EnteredNetwork(self._home.network(sandbox_id))
        )
        return DockerCell(sandbox_id, self._api, record, container, network, self._remove)

    async def owned(self) -> Sequence[SandboxId]:
        written = await asyncio.to_thread(self._home.ids)
        if not self._home.root.exists():
            return ()
        whose = f"{names.LABEL_OWNER}={await self._setup.owner()}"
        # One after the other: a task that is cancelled before it starts never awaits its question.
        containers = await asked(self._api.containers(whose), "containers")
        volumes = await asked(self._api.volumes(whose), "volumes")
        resources = [*containers, *volumes]
        if any(_kind(resource) == names.PROBE for resource in resources) or self._setup.probed():
            await self._setup.clear_probes()
        labelled = {
            names.id_in((resource.get("Labels") or {}).get(names.LABEL_ID, ""))
            for resource in resources
            if _kind(resource) == names.CELL
        }
        return sorted(
            sandbox_id
            for sandbox_id in {*written, *labelled}
            if sandbox_id is not None and not sandbox_id.startswith(TRIAL)
        )

    async def discard(self, sandbox_id: SandboxId) -> None:
        """Remove what is left of a sandbox that is no longer alive."""
        await self._remove(sandbox_id)

    async def find_image(self, names: Sequence[str], *, fetch: bool = False) -> Image | None:
        """Implement `ports.KeepsImages`."""
        return await self._images.find(names, fetch=fetch)

    async def bring_image(self, image: Image) -> None:
        await self._images.reference(image)

    async def bring_contents(self, mounts: Sequence[HostMount]) -> None:
        await self._contents.bring(mounts)

    async def aclose(self) -> None:
        if "_api" in self.__dict__:
            await self._api.aclose()

    # ---- one sandbox

    async def _create(self, sandbox_id: SandboxId, spec: CellSpec) -> DockerCell:
        place = self._setup.place
        # Before anything is made for the sandbox; reused for the container that follows.
        image = await self._images.reference(spec.image)
        declared = await self._images.volumes(spec.image, image)
        unsupported.check_volumes(spec, place, declared, self._api.address.section)
        lost = tuple((u.limit, u.reason, u.remedy) for u in self._setup.unenforced)
        beside = not spec.network.closed and not await self._setup.can_enter()
        record = CellRecord(place, lost, len(declared), beside, spec.inspection is not None)
        # On disk before any of it exists, so that it can be removed after a crash.
        await asyncio.to_thread(self._home.begin, sandbox_id, record)
        try:
            return await self._fill(sandbox_id, with_variables(spec), record)
        except BaseException as exc:
            # An engine that just failed to answer gets no further requests.
            if not (isinstance(exc, BackendUnavailable) and exc.details.get("backend")):
                with contextlib.suppress(SandkastenError, TimeoutError):
                    async with asyncio.timeout(_UNDO_S):
                        await asyncio.shield(self._remove(sandbox_id))
            raise

    async def _fill(self, sandbox_id: SandboxId, spec: CellSpec, record: CellRecord) -> DockerCell:
        place = record.place
        owner = await self._setup.owner()
        await session_volumes.make(place, self._api, sandbox_id, owner, spec)
        authority = None
        if spec.inspection is not None:
            detection = await self._setup.detection()
            authority = await trust_volume.make(self._api, detection, sandbox_id, owner, spec)
        try:
            cell = await self._begun(sandbox_id, spec, record, authority)
        except BackendUnavailable:
            if place.mode == "archive" or not await self._mended(record):
                raise
            for name in (sandbox_id, *names.network_containers(sandbox_id)):
                await asked(self._api.remove(name), "a container")
            cell = await self._begun(sandbox_id, spec, record, authority)
        if spec.workspace is not None and spec.workspace.kind != "volume":
            await cell.check_alive()
            await asyncio.to_thread(self._tell_relatives, cell, spec.workspace.path)
        return cell

    async def _begun(
        self,
        sandbox_id: SandboxId,
        spec: CellSpec,
        record: CellRecord,
        authority: Authority | None,
    ) -> DockerCell:
        """Create and start the container; return when its runner answers."""
        container = await self._make(sandbox_id, spec)
        try:
            await self._images.check_links(container, spec.image)
            if record.place.mode == "archive":
                await self._injection.put_into(container)
                await self._contents.put_into(container, spec.mounts)
            await self._api.start(container)
        except Refused as exc:
            raise unsupported.unstarted(sandbox_id, spec, exc) from exc
        cell = self._cell(sandbox_id, record, container)
        self._made[sandbox_id] = cell
        try:
            await cell.greet()
        except SandboxLost as exc:
            why = await self._last_words(container) or exc.message
            raise unsupported.ended_early(sandbox_id, spec, why) from exc
        if self._setup.separate_sockets:
            # Nothing but the runner has run yet, and it has no network socket.
            await cell.limit_sockets(cgroups.socket_bytes(spec.limits))
        if not spec.network.closed:
            try:
                await self._open_network(cell, record, spec, authority)
            except BaseException:
                await asyncio.shield(cell.let_go())
                raise
        return cell

    async def _open_network(
        self, cell: DockerCell, record: CellRecord, spec: CellSpec, authority: Authority | None
    ) -> None:
        """Give the container its network. Nothing but the runner has run in it yet."""
        if record.beside:
            await self._network_programs.ensure_once(await self._setup.detection())
            programs, owner = self._network_programs.mount, await self._setup.owner()
            beside = EgressContainers(self._api, cell.id)
            await beside.start(cell.container, programs, owner, spec, authority)
            return
        container = await cell.inspected()
        await asyncio.to_thread(
            container_network.open_network,
            self._home.network(cell.id),
            self._programs,
            cell.id,
            container,
            spec,
            authority,
        )

    async def _mended(self, record: CellRecord) -> bool:
        """Return whether a volume of programs caused the failure and is repaired now. A user may
        prune unused volumes, and a copy ends half-way when its engine stops.
        """
        volumes = (self._injection, self._network_programs) if record.beside else (self._injection,)
        try:
            async with self._setup.probing():
                detection = await self._setup.detection()
                return any([await volume.ensure(detection) for volume in volumes])
        except SandkastenError:
            return False

    async def _make(self, sandbox_id: SandboxId, spec: CellSpec, *, again: bool = True) -> str:
        name = names.container_name(sandbox_id)
        image = await self._images.reference(spec.image)
        config = container_config.container(
            sandbox_id, spec, await self._cell_platform(sandbox_id, spec, image)
        )
        try:
            return await self._api.create(name, config)
        except Refused as exc:
            if exc.not_there and again and self._images.forget(spec.image, image):
                # The image was loaded into the engine once and has been removed there since.
                return await self._make(sandbox_id, spec, again=False)
            if exc.not_there:
                raise gone(spec.image, exc.message) from exc
            if exc.conflict:
                raise Conflict(
                    f"the Docker Engine has a container named {name} already",
                    hint="remove it (docker rm), or use another id",
                ) from exc
            failure = f"sandbox {sandbox_id} could not be made"
            raise unsupported.no_gpus(spec, exc.message) or translated(exc, failure) from exc

    def _tell_relatives(self, cell: DockerCell, volume: str) -> None:
        """Write the pid file by which every backend checks whether a workspace is in use."""
        directory = cell.place.directory(cell.id)
        write_state(directory, CellState(boot_id(), None, (), None, volume=volume))
        started = start_time(cell.pid)
        if started is not None:
            (directory / "pid").write_text(f"{cell.pid} {started}")

    async def _cell_platform(
        self, sandbox_id: SandboxId, spec: CellSpec, image: str
    ) -> container_config.ContainerPlatform:
        place, owner, volume = self._setup.place, await self._setup.owner(), spec.workspace
        archive = place.mode == "archive"
        workspace_volumes: tuple[str, ...] = ()
        if volume is not None and volume.kind == "volume":
            workspace_volumes = names.kept_volume_names(owner, volume.path)
        mounted = (
            *session_volumes.mounts(
                place, sandbox_id, home=home(spec), workspace_volumes=workspace_volumes
            ),
            *await self._contents.mounts(spec.mounts, user_id(spec)),
            *([trust_volume.mount(sandbox_id)] if spec.inspection is not None else ()),
        )
        return container_config.ContainerPlatform(
            owner=owner,
            image=image,
            mounts=mounted if archive else (self._injection.mount, *mounted),
            seccomp=seccomp_oci.profile(seccomp_bpf.machine()),
            given=place.mode not in ("volume", "directory") and not workspace_volumes,
            image_volumes=await self._images.volumes(spec.image, image),
            writable_root=archive,
            separate_sockets=self._setup.separate_sockets,
        )

    async def _last_words(self, container: str) -> str:
        try:
            return (await self._api.logs(container)).strip()
        except (Refused, SandkastenError):
            return ""

    async def _found(self, sandbox_id: SandboxId) -> Mapping[str, Any]:
        try:
            container = await self._api.inspect(names.container_name(sandbox_id))
        except Refused as exc:
            if exc.not_there:
                raise SandboxLost(
                    f"sandbox {sandbox_id} is not running", hint="create a new one"
                ) from exc
            raise translated(exc, f"sandbox {sandbox_id} cannot be looked at") from exc
        labels = (container.get("Config") or {}).get("Labels") or {}
        owned = labels.get(names.LABEL_OWNER) == await self._setup.owner()
        if not owned or not is_running(container):
            raise SandboxLost(f"sandbox {sandbox_id} is not running", hint="create a new one")
        return container

    async def _remove(self, sandbox_id: SandboxId, container: str = "") -> None:
        """Kill the container and remove everything. Twice is fine; so is a half-made one.

        `container` is the id of a complete container: its record lists what else exists, so nothing
        is searched. Otherwise everything with its labels is searched.
        """
        cell = self._made.pop(sandbox_id, None)
        if cell is not None:
            await cell.let_go()
        record = await asyncio.to_thread(self._home.read, sandbox_id)
        labels = (*await self._mine(), f"{names.LABEL_ID}={sandbox_id}")
        targets = [container]
        whole = bool(container) and record is not None
        if not whole:
            containers = await asked(self._api.containers(*labels), "containers")
            targets = [str(entry["Id"]) for entry in containers]
        beside = whole and record is not None and record.beside
        for target in (*targets, *(names.network_containers(sandbox_id) if beside else ())):
            await asked(self._api.remove(target), "a container")
        if beside:
            await session_volumes.remove_volumes(self._api, names.egress_volume_name(sandbox_id))
        if record is not None and record.place.mode == "directory":
            await self._erase(record.place, sandbox_id)
        if record is not None and whole:
            if record.inspected:
                await trust_volume.remove(self._api, sandbox_id)
            await session_volumes.remove(record.place, self._api, sandbox_id, record.image_volumes)
        elif record is not None:
            await session_volumes.remove_directories(record.place, sandbox_id)
        if not whole:
            # By label, not by name: another installation may use such a name.
            volumes = await asked(self._api.volumes(*labels), "volumes")
            await session_volumes.remove_volumes(
                self._api, *(str(volume["Name"]) for volume in volumes)
            )
        network = self._home.network(sandbox_id)
        await asyncio.to_thread(container_network.close_network, network, sandbox_id)
        await asyncio.to_thread(self._home.end, sandbox_id)

    async def _erase(self, place: SessionVolumes, sandbox_id: SandboxId) -> None:
        # Provides the runner and the empty image, which may be gone since the session was made.
        await self._setup.settle()
        await session_volumes.erase(
            place,
            self._api,
            sandbox_id,
            self._injection.mount,
            f"{PROBE_IMAGE}:latest",
            await self._setup.owner(),
        )

    async def _mine(self) -> tuple[str, ...]:
        return (f"{names.LABEL}={names.CELL}", f"{names.LABEL_OWNER}={await self._setup.owner()}")


def _seen(task: asyncio.Future[DockerCell]) -> None:
    """Retrieve the exception of a task whose caller has gone."""
    if not task.cancelled():
        task.exception()


def _kind(resource: Mapping[str, Any]) -> str:
    return str((resource.get("Labels") or {}).get(names.LABEL, ""))
