"""Where a session's files are kept, as this process and as the engine sees them.

`bind` and `shared` are directories that both see, perhaps by different paths; `volume` and
`directory` (which the operator names) are visible to the engine only; `archive` means no volume at
all, so the container's own layer holds the files.
This module creates and removes them; `workspace_mode` finds out which mode is supported. Blocking
parts run in a thread. Raises BackendUnavailable, QuotaExceeded, Conflict.
"""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sandkasten.disk.cleanup import finish
from sandkasten.disk.os_errors import disk_error, is_exhausted, is_full
from sandkasten.errors import (
    BackendUnavailable,
    Conflict,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.cell_spec import HOME, RUNNER_ID, USER_ID, WORKSPACE, user_id
from sandkasten_docker import resource_names
from sandkasten_docker.container_config import ContainerMount, labels
from sandkasten_docker.docker_engine.docker_client import DockerClient, Refused, translated
from sandkasten_runtime.linux.storage import host_volume

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec

Mode = Literal["bind", "volume", "shared", "archive", "directory"]

# One tree of a session is removed by a container; what takes longer goes on at the next attempt.
_ERASE_S, _ERASE_PAUSE_S = 60.0, 0.02
_ERASED = "/base"
# An engine releases a volume slightly after its container is gone.
_VOLUME_TRIES, _VOLUME_PAUSE_S, _VOLUME_LONGEST_S = 20, 0.005, 0.1


@dataclass(frozen=True, slots=True)
class SessionVolumes:
    """Where the files of a session are. A record on disk has it: its fields are keys there."""

    mode: Mode
    why: str
    """How it was detected; for doctor."""
    ours: str = ""
    """The directory of all sessions, as this process sees it; empty if it sees none."""
    engine: str = ""
    """The same directory, as the engine sees it."""
    direct: bool = False
    """Whether a socket that the runner binds in it can be dialled from here."""
    sized: bool = False
    """Whether each session's files are a separate disk image, mounted here, so that the
    kernel enforces the size.
    """

    sized_volumes: bool = False
    """Whether the engine makes volumes that the kernel of its machine holds to a size."""

    engines_own: bool = False
    """Whether it is among the engine's own files, as volumes are."""

    @property
    def same(self) -> bool:
        """Whether our paths equal the engine's."""
        return bool(self.ours) and self.ours == self.engine

    def directory(self, sandbox_id: SandboxId) -> Path:
        return Path(self.ours) / sandbox_id

    def listener(self, sandbox_id: SandboxId) -> Path | None:
        if not self.direct:
            return None
        return self.directory(sandbox_id) / "listen" / resource_names.SOCKET


def mounts(
    place: SessionVolumes,
    sandbox_id: SandboxId,
    *,
    home: str = HOME,
    workspace_volumes: Sequence[str] = (),
) -> tuple[ContainerMount, ...]:
    """Return the mounts of a session; `workspace_volumes` belong to its named workspace."""
    if workspace_volumes:
        own = mounts(place, sandbox_id, home=home) if place.mode != "volume" else ()
        files, at_home = workspace_volumes
        return (
            ContainerMount("volume", files, WORKSPACE),
            ContainerMount("volume", at_home, home),
            *(mount for mount in own if mount.target not in (WORKSPACE, home)),
        )
    if place.mode == "archive":
        return ()
    if place.mode == "volume":
        return (
            ContainerMount("volume", resource_names.volume_name(sandbox_id), WORKSPACE),
            ContainerMount("volume", resource_names.home_volume_name(sandbox_id), home),
        )
    root = f"{place.engine}/{sandbox_id}"
    files = f"{root}/{host_volume.POINT}" if place.sized else root
    bindings = [(f"{files}/workspace", WORKSPACE), (f"{files}/home", home)]
    if place.direct:
        bindings.append((f"{root}/listen", resource_names.LISTEN_DIR))
    return tuple(
        ContainerMount(
            "bind",
            source,
            target,
            docker_owned=place.engines_own,
            created=place.mode == "directory",
        )
        for source, target in bindings
    )


async def make(
    place: SessionVolumes, api: DockerClient, sandbox_id: SandboxId, owner: str, spec: CellSpec
) -> None:
    """Create what must exist before the container is made."""
    workspace = spec.workspace
    if workspace is not None and workspace.kind == "volume":
        await make_kept(api, owner, workspace.path)
    elif place.mode == "volume":
        names = resource_names.volume_name(sandbox_id), resource_names.home_volume_name(sandbox_id)
        size = spec.limits.workspace_bytes if place.sized_volumes else None
        volume_labels = labels(resource_names.CELL, owner, sandbox_id)
        await make_volumes(api, names, volume_labels, size_bytes=size)
    if place.ours:
        await asyncio.to_thread(_make_directories, place, sandbox_id, spec, api.address.section)


async def make_kept(api: DockerClient, owner: str, workspace: str) -> tuple[str, str]:
    """Create the volumes of a named workspace unless they exist, and return their names."""
    names = resource_names.kept_volume_names(owner, workspace)
    volume_labels = {
        **labels(resource_names.WORKSPACE, owner),
        resource_names.LABEL_NAME: workspace,
    }
    await make_volumes(api, names, volume_labels)
    return names


async def make_volumes(
    api: DockerClient,
    names: Sequence[str],
    volume_labels: Mapping[str, str],
    *,
    size_bytes: int | None = None,
) -> None:
    """Create volumes unless they exist. Raise Conflict for a volume of another owner."""
    try:
        volumes = await asyncio.gather(
            *(api.make_volume(name, volume_labels, size_bytes) for name in names)
        )
    except Refused as exc:
        raise translated(exc, "a volume could not be made") from exc
    for volume in volumes:
        # An engine returns an existing volume, whatever made it and whatever it contains.
        labelled = (volume.get("Labels") or {}).get(resource_names.LABEL_OWNER)
        if labelled != volume_labels[resource_names.LABEL_OWNER]:
            raise Conflict(
                f"the Docker Engine has a volume named {volume.get('Name')} already, which is not "
                "ours",
                hint="remove it (docker volume rm), or use another id",
            )


def _make_directories(
    place: SessionVolumes, sandbox_id: SandboxId, spec: CellSpec, section: str
) -> None:
    root, owner = place.directory(sandbox_id), user_id(spec)
    try:
        # Not readable by other users of this machine; the engine binds its content by path, as
        # root.
        root.mkdir(mode=0o700, exist_ok=True)
        if place.direct:
            _make_one(root / "listen", RUNNER_ID, 0o700)
        if not place.sized and spec.workspace is None:
            _make_one(root / "workspace", owner, 0o755)
            _make_one(root / "home", owner, 0o755)
    except OSError as exc:
        if is_full(exc) or is_exhausted(exc):
            raise disk_error(f"make a workspace in {root.parent}", exc) from exc
        raise BackendUnavailable(
            f"a workspace could not be made in {root.parent}: {exc.strerror or exc}",
            hint=f"check its permissions, or set {section}.workspace_mode: volume",
        ) from exc
    if spec.workspace is not None:
        if spec.workspace.kind == "volume":
            return
        host_volume.open_kept(root, spec.workspace, owner=owner)
    elif place.sized:
        templates = Path(place.ours).with_name("templates")
        host_volume.make(
            root,
            spec.limits.workspace_bytes,
            owner=owner,
            templates=templates,
            reserve=spec.reserve_disk,
            min_free=spec.min_free_bytes,
        )


def _make_one(path: Path, owner: int, mode: int) -> None:
    path.mkdir(mode=mode, exist_ok=True)
    os.chown(path, owner, owner, follow_symlinks=False)
    path.chmod(mode)


async def remove_directories(place: SessionVolumes, sandbox_id: SandboxId) -> None:
    """Remove what we made on our own disk. Twice is fine. The container is already gone."""
    if place.ours:
        # Also if nothing is mounted.
        await asyncio.to_thread(host_volume.release, place.directory(sandbox_id))


async def remove(
    place: SessionVolumes, api: DockerClient, sandbox_id: SandboxId, image_volumes: int = 0
) -> None:
    """Remove everything of a session that was made completely, so resources with its names are
    its own.
    """
    await remove_directories(place, sandbox_id)
    names = [
        resource_names.image_volume_name(sandbox_id, number) for number in range(image_volumes)
    ]
    if place.mode == "volume":
        names += [
            resource_names.volume_name(sandbox_id),
            resource_names.home_volume_name(sandbox_id),
        ]
    await remove_volumes(api, *names)


async def erase(
    place: SessionVolumes,
    api: DockerClient,
    sandbox_id: SandboxId,
    runner: ContainerMount,
    image: str,
    owner: str,
) -> None:
    """Remove the session's directory of the engine's machine, which only a container reaches.

    The container has nothing but our own program and that directory, and no user code runs in it.
    """
    base = ContainerMount("bind", place.engine, _ERASED, docker_owned=place.engines_own)
    config = {
        "Image": image,
        "Entrypoint": [resource_names.RUNNER_PATH, "--erase", f"{_ERASED}/{sandbox_id}"],
        "Cmd": [],
        "User": "0:0",
        # So that it is found and removed with the session, if this process is killed meanwhile.
        "Labels": labels(resource_names.CELL, owner, sandbox_id),
        "NetworkDisabled": True,
        "HostConfig": {
            "NetworkMode": "none",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            # Files of every owner, also below directories with a sticky bit.
            "CapAdd": ["DAC_OVERRIDE", "FOWNER"],
            "SecurityOpt": ["no-new-privileges:true"],
            "Mounts": [runner.to_json(), base.to_json()],
        },
    }
    try:
        container = await api.create(None, config)
        try:
            await api.start(container)
            code = await _exit_code(api, container)
            if code != 0:
                why = "it takes long" if code is None else (await api.logs(container)).strip()
                raise BackendUnavailable(
                    f"the directory {place.engine}/{sandbox_id} could not be removed: {why[:500]}",
                    hint="it is removed later; see the Docker Engine's own log",
                )
        finally:
            await finish(api.remove(container))
    except Refused as exc:
        raise translated(exc, f"{place.engine}/{sandbox_id} could not be removed") from exc


async def _exit_code(api: DockerClient, container: str) -> int | None:
    """Wait for the end of a container; None if it still runs after a minute."""
    for _ in range(int(_ERASE_S / _ERASE_PAUSE_S)):
        state = (await api.inspect(container)).get("State") or {}
        if not state.get("Running"):
            return int(state.get("ExitCode") or 0)
        await asyncio.sleep(_ERASE_PAUSE_S)
    return None


async def remove_volumes(api: DockerClient, *volumes: str) -> None:
    async def remove_volume(name: str) -> None:
        for attempt in range(_VOLUME_TRIES):
            try:
                await api.remove_volume(name)
            except Refused as exc:
                if not exc.conflict or attempt == _VOLUME_TRIES - 1:
                    raise translated(exc, f"volume {name} could not be removed") from exc
                await asyncio.sleep(min(_VOLUME_PAUSE_S * 2**attempt, _VOLUME_LONGEST_S))
            else:
                return

    await asyncio.gather(*(remove_volume(name) for name in volumes))


def archive(runner: bytes, *, layer: bool, name: str = "runner") -> bytes:
    """Return the runner, or another program, as a tar for its volume; with `layer`, for a
    container's own root instead.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        if layer:
            for path, owner in (
                # Also over the image's content, as a tmpfs would be.
                ("/run", 0),
                (resource_names.RUNNER_DIR, 0),
                (resource_names.BIN_DIR, 0),
                (WORKSPACE, USER_ID),
                (HOME, USER_ID),
            ):
                entry = tarfile.TarInfo(path.strip("/"))
                entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, 0o755, owner, owner
                tar.addfile(entry)
        entry = tarfile.TarInfo(resource_names.RUNNER_PATH.strip("/") if layer else name)
        entry.size, entry.mode = len(runner), 0o755
        tar.addfile(entry, io.BytesIO(runner))
    return buffer.getvalue()
