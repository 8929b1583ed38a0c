"""The certificates of an inspected sandbox: its own volume, which it has read-only.

A volume works with every engine, whether or not it sees our files. It contains no key.
"""

from __future__ import annotations

import asyncio
import io
import tarfile
from typing import TYPE_CHECKING, Final

from sandkasten.disk.cleanup import finish
from sandkasten.model.sandbox.inspection import TRUST_DIR
from sandkasten_docker import resource_names, session_volumes
from sandkasten_docker.container_config import ContainerMount, labels
from sandkasten_docker.docker_engine.docker_client import DockerClient, Refused, translated
from sandkasten_docker.docker_engine.workspace_mode import PROBE_IMAGE
from sandkasten_runtime.linux.trust_files import make_authority, trusted_roots

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten_docker.docker_engine.workspace_mode import WorkspaceModes
    from sandkasten_runtime.linux.trust_files import Authority

_POINT: Final = "/tls"


def mount(sandbox_id: SandboxId) -> ContainerMount:
    name = resource_names.trust_volume_name(sandbox_id)
    return ContainerMount("volume", name, TRUST_DIR, read_only=True)


async def make(
    api: DockerClient,
    detection: WorkspaceModes,
    sandbox_id: SandboxId,
    owner: str,
    spec: CellSpec,
) -> Authority:
    """Make an authority only for this sandbox, and the volume with its certificates."""
    authority = await asyncio.to_thread(
        lambda: make_authority(sandbox_id, trusted_roots(spec.ceiling))
    )
    # A user may have pruned unused images.
    await detection.ensure_probe_image()
    name = resource_names.trust_volume_name(sandbox_id)
    # Found and removed with the sandbox, if this process is killed meanwhile.
    own = labels(resource_names.CELL, owner, sandbox_id)
    await session_volumes.make_volumes(api, [name], own)
    writable = ContainerMount("volume", name, _POINT)
    config = {
        "Image": f"{PROBE_IMAGE}:latest",
        "Cmd": ["/nothing"],
        "Labels": own,
        "NetworkDisabled": True,
        "HostConfig": {"NetworkMode": "none", "Mounts": [writable.to_json()]},
    }
    try:
        # Never started: an engine copies only into a container.
        container = await api.create(None, config)
        try:
            packed = await asyncio.to_thread(lambda: _packed(authority.files()))
            await api.put(container, _POINT, packed)
        finally:
            await finish(api.remove(container))
    except Refused as exc:
        raise translated(exc, f"the certificates of {sandbox_id} could not be copied") from exc
    return authority


async def remove(api: DockerClient, sandbox_id: SandboxId) -> None:
    await session_volumes.remove_volumes(api, resource_names.trust_volume_name(sandbox_id))


def _packed(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
