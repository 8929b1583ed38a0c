"""Detect which workspace mode an engine supports, by asking it instead of guessing.

One of our directories, with an unguessable name, is offered to the engine as the source of a bind:
only an engine that sees it creates the container (which is never started). If this process runs in
a container of that very engine, the container's mounts translate our paths. Raises
BackendUnavailable if the mode that the operator requires is not supported.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import secrets
import socket
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandkasten.disk.cleanup import finish, in_thread
from sandkasten.disk.file_lock import locked
from sandkasten.errors import BackendUnavailable, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.cell_spec import USER_ID
from sandkasten.model.sandbox.limits import MIB
from sandkasten_docker import resource_names
from sandkasten_docker.container_config import ContainerMount, labels
from sandkasten_docker.docker_engine.docker_client import DockerClient, Refused, translated
from sandkasten_docker.session_volumes import SessionVolumes
from sandkasten_runtime.linux.storage import host_volume

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from sandkasten_docker.docker_options import DockerOptions

PROBE_IMAGE = "sandkasten-probe"
PROBE_PREFIX = ".probe-"
"""How the names of directories begin that are offered to an engine."""
PROBES_IN_USE = "probes-in-use"
"""Lock beside the cells: shared by every process of the installation that has a probe container."""
_PROBE_BYTES = 16 * MIB
_CONTAINER_ID = re.compile(r"/containers/([0-9a-f]{64})/")


@dataclass(frozen=True, slots=True)
class OwnContainer:
    """The container that this process runs in, as its engine describes it."""

    mounts: tuple[Mapping[str, Any], ...]

    def translated(self, path: Path) -> str | None:
        """Return the engine's path for one of ours; None if it is in no mount."""
        best: tuple[int, str] | None = None
        for mount in self.mounts:
            inside, outside = str(mount.get("Destination", "")), str(mount.get("Source", ""))
            if not inside or not outside.startswith("/") or not mount.get("RW", True):
                continue
            if path.is_relative_to(inside) and (best is None or len(inside) > best[0]):
                rest = path.relative_to(inside)
                best = len(inside), str(Path(outside) / rest)
        return None if best is None else best[1]

    def volume(self, name: str) -> tuple[str, str] | None:
        """Return (our path, the engine's path) of a volume of that name."""
        for mount in self.mounts:
            if mount.get("Type") == "volume" and mount.get("Name") == name and mount.get("RW"):
                return str(mount["Destination"]), str(mount["Source"])
        return None


class WorkspaceModes:
    """Detects the workspace mode. `cells` is the directory of the sessions' files, if we can
    have one.
    """

    def __init__(self, api: DockerClient, options: DockerOptions, cells: Path, owner: str) -> None:
        self._api = api
        self._options = options
        self._cells = cells
        self._owner = owner

    async def find(self, info: Mapping[str, Any]) -> SessionVolumes:
        """Return the best supported mode, or the one the operator requires."""
        await self.ensure_probe_image()
        if self._options.workspace_dir:
            return self._with_required_size(
                await self._directory(self._options.workspace_dir, info)
            )
        wanted = self._options.workspace
        tried: list[str] = []
        for mode in ("bind", "shared", "volume", "archive") if wanted == "auto" else (wanted,):
            try:
                place = await self._try(mode, info)
            except SandkastenError as exc:
                if wanted != "auto":
                    raise
                tried.append(exc.message)
            else:
                because = f"; {tried[-1]}" if tried else ""
                return replace(place, why=place.why + because)
        raise BackendUnavailable(
            f"this Docker Engine supports no workspace mode: {'; '.join(tried)}",
            hint="see the Docker guide for the required calls",
        )

    async def _try(self, mode: str, info: Mapping[str, Any]) -> SessionVolumes:
        match mode:
            case "volume":
                sized = self._options.require_workspace_limit
                await self._check_volumes(_PROBE_BYTES if sized else None)
                how = "volumes of the Docker Engine"
                return SessionVolumes("volume", how, sized_volumes=sized)
            case "archive":
                how = "the container's own layer, filled by archive copies"
                return self._with_required_size(SessionVolumes("archive", how))
        self._check_ids(mode, info)
        inside = await self._self()
        if mode == "shared":
            return self._with_required_size(await self._shared(inside, info))
        return self._with_required_size(await self._bind(inside, info))

    def _with_required_size(self, place: SessionVolumes) -> SessionVolumes:
        """Return the mode, unless the operator requires sizes that it cannot enforce."""
        if place.sized or not self._options.require_workspace_limit:
            return place
        raise self._size_refused(f"workspace_mode {place.mode}", place.why)

    def _size_refused(self, what: str, why: str) -> BackendUnavailable:
        section = self._api.address.section
        return BackendUnavailable(
            f"{what} cannot enforce workspace_mb ({why})",
            hint="use workspace_mode bind on the Docker Engine's own machine, as root, keep its "
            "volumes on XFS mounted with pquota, or set "
            f"{section}.require_workspace_limit: false",
        )

    async def _bind(self, inside: OwnContainer | None, info: Mapping[str, Any]) -> SessionVolumes:
        at = str(self._cells)
        docker_path = inside.translated(self._cells) if inside is not None else at
        if docker_path is None:
            raise self._unshared(at, "it lies in no mount of the container that we are")
        own = _below(docker_path, info)
        await self._check_seen(self._cells, docker_path, own)
        how = "the Docker Engine sees our data directory"
        if docker_path != at:
            how = f"the Docker Engine sees our data directory as {docker_path}"
            return SessionVolumes("bind", how, at, docker_path, direct=True, engines_own=own)
        unsized = await self._unsized()
        how += f"; sizes are not held ({unsized})" if unsized else ", and volumes that we mount"
        return SessionVolumes(
            "bind", how, at, docker_path, direct=True, sized=not unsized, engines_own=own
        )

    async def _directory(self, path: str, info: Mapping[str, Any]) -> SessionVolumes:
        """Check that the engine's machine has the directory that the operator names."""
        own = _below(path, info)
        try:
            async with self.probe_container(
                ContainerMount("bind", path, "/probe", docker_owned=own)
            ):
                pass
        except Refused as exc:
            raise BackendUnavailable(
                f"{self._api.address.section}.workspace_dir: the Docker Engine's machine has no "
                f"directory {path} ({exc.message})",
                hint="create it on that machine, or leave the setting out",
            ) from exc
        how = f"directories in {path} of the Docker Engine's machine"
        return SessionVolumes("directory", how, engine=path, engines_own=own)

    async def _unsized(self) -> str:
        """Return why the engine cannot have volumes of exact size from us; empty if it can."""
        why = await asyncio.to_thread(host_volume.supported, self._cells)
        if why is not None:
            return why
        tried = self._cells / f"{PROBE_PREFIX}{secrets.token_hex(16)}"
        try:
            volume = await asyncio.to_thread(
                host_volume.make, tried, _PROBE_BYTES, owner=USER_ID, templates=self._templates
            )
            async with self.probe_container(
                ContainerMount("bind", str(volume.workspace), "/probe", True)
            ):
                return ""
        except Refused as exc:
            return f"the Docker Engine does not see what we mount: {exc.message}"
        except SandkastenError as exc:
            return exc.message
        finally:
            await finish(in_thread(host_volume.release, tried))

    @property
    def _templates(self) -> Path:
        return self._cells.with_name("templates")

    async def _shared(self, inside: OwnContainer | None, info: Mapping[str, Any]) -> SessionVolumes:
        name = self._options.shared_volume
        paths = inside.volume(name) if inside is not None else await self._mountpoint(name)
        if paths is None:
            raise BackendUnavailable(
                f"the volume {name} is not mounted in the daemon's own container",
                hint=f"mount it (-v {name}:/shared-sandboxes), or set workspace_mode: auto",
            )
        local_path, docker_path = paths
        own = _below(docker_path, info)
        await self._check_seen(Path(local_path), docker_path, own)
        how = f"the volume {name}, here {local_path}"
        return SessionVolumes("shared", how, local_path, docker_path, direct=True, engines_own=own)

    async def _mountpoint(self, name: str) -> tuple[str, str]:
        """Return the directory of the engine's volumes, if we run on the engine's machine."""
        try:
            volume = await self._api.make_volume(name, {resource_names.LABEL: "shared"})
        except Refused as exc:
            raise translated(exc, f"the volume {name} could not be made") from exc
        return str(volume["Mountpoint"]), str(volume["Mountpoint"])

    def _check_ids(self, mode: str, info: Mapping[str, Any]) -> None:
        """Raise unless we can give our directories to the sandbox's user, which requires root."""
        if os.geteuid() != 0:
            raise BackendUnavailable(
                f"{mode} requires root, which can chown directories to a sandbox's user",
                hint=f"set {self._api.address.section}.workspace_mode: auto or volume",
            )
        if user_namespaces(info):
            raise BackendUnavailable(
                f"{mode} is not supported by a Docker Engine that maps user ids",
                hint=f"set {self._api.address.section}.workspace_mode: auto or volume",
            )

    async def _check_seen(self, local_path: Path, docker_path: str, own: bool) -> None:
        """Check that the engine sees our directory: it refuses a bind of a path it does not see."""
        nonce = f"{PROBE_PREFIX}{secrets.token_hex(16)}"
        try:
            await asyncio.to_thread(self._cells.mkdir, mode=0o700, parents=True, exist_ok=True)
            # Without parents: the engine may name a directory that only its own machine has.
            await asyncio.to_thread((local_path / nonce).mkdir, mode=0o700)
        except OSError as exc:
            raise self._unshared(str(local_path), exc.strerror or str(exc)) from exc
        try:
            offered = ContainerMount(
                "bind", f"{docker_path}/{nonce}", "/probe", True, docker_owned=own
            )
            async with self.probe_container(offered):
                pass
        except Refused as exc:
            raise self._unshared(str(local_path), exc.message) from exc
        finally:
            with contextlib.suppress(OSError):
                await asyncio.to_thread((local_path / nonce).rmdir)

    def _unshared(self, path: str, why: str) -> BackendUnavailable:
        return BackendUnavailable(
            f"the Docker Engine does not see {path} ({why})",
            hint="it runs elsewhere, or we run in a container: let "
            f"{self._api.address.section}.workspace_mode be auto, or mount the volume "
            "station-sandboxes into our container",
        )

    async def _check_volumes(self, size_bytes: int | None) -> None:
        name = f"sandkasten-probe-{secrets.token_hex(8)}"
        volume_labels = labels(resource_names.PROBE, self._owner)
        try:
            await self._api.make_volume(name, volume_labels, size_bytes)
            await self._api.remove_volume(name)
        except Refused as exc:
            if size_bytes is not None:
                raise self._size_refused("workspace_mode volume", exc.message) from exc
            raise translated(exc, "the Docker Engine makes no volumes for us") from exc

    @contextlib.asynccontextmanager
    async def probe_container(self, *mounts: ContainerMount) -> AsyncIterator[str]:
        """Make a container that is never started, from an empty image, for the block.

        The shared lock tells `DockerSetup.clear_probes` that it is not a leftover.
        """
        config = {
            "Image": f"{PROBE_IMAGE}:latest",
            "Cmd": ["/nothing"],
            "Labels": labels(resource_names.PROBE, self._owner),
            "NetworkDisabled": True,
            "HostConfig": {
                "NetworkMode": "none",
                "Mounts": [mount.to_json() for mount in mounts],
            },
        }
        async with locked(self._cells.with_name(PROBES_IN_USE), shared=True):
            container = await self._api.create(None, config)
            try:
                yield container
            finally:
                await finish(self._api.remove(container))

    async def ensure_probe_image(self) -> None:
        try:
            if await self._api.image(f"{PROBE_IMAGE}:latest") is None:
                await self._api.import_tree(_empty_tar(), PROBE_IMAGE, "latest")
        except Refused as exc:
            raise translated(exc, "an empty image could not be given to the Docker Engine") from exc

    async def _self(self) -> OwnContainer | None:
        """Return our own container; None if we are not in one of this engine's."""
        for name in await asyncio.to_thread(_own_ids):
            try:
                container = await self._api.inspect(name)
            except Refused:
                continue
            if container.get("Config", {}).get("Hostname") == socket.gethostname():
                return OwnContainer(tuple(container.get("Mounts") or ()))
        return None


def user_namespaces(info: Mapping[str, Any]) -> bool:
    """Return whether uid 0 in a container is another uid on the engine's machine."""
    options: Sequence[str] = info.get("SecurityOptions") or ()
    return any(option.startswith(("name=userns", "name=rootless")) for option in options)


def _below(path: str, info: Mapping[str, Any]) -> bool:
    """Return whether the path is among the engine's own files."""
    root = str(info.get("DockerRootDir") or "")
    return bool(root) and Path(path).is_relative_to(root)


def _own_ids() -> list[str]:
    """Return the ids by which an engine may know this process; empty outside of containers."""
    with contextlib.suppress(OSError):
        match = _CONTAINER_ID.search(Path("/proc/self/mountinfo").read_text())
        if match:
            return [match[1]]
    return [socket.gethostname()] if os.path.exists("/.dockerenv") else []


def _empty_tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w"):
        pass
    return buffer.getvalue()
