"""The network of a container: its namespace is prepared from outside, for an egress process.

The engine makes the container without a network. The launcher then enters its namespace, which
requires root on the engine's machine and a runtime that uses that machine's kernel. Nothing but the
runner runs in the container by then. Blocking.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import struct
from typing import TYPE_CHECKING, Any, Final

from sandkasten.disk.os_errors import disk_error
from sandkasten.errors import BackendUnavailable, UnsupportedByBackend
from sandkasten.model.addresses import is_loopback
from sandkasten.model.backends.named_backends import settings_section
from sandkasten_docker import container_usage
from sandkasten_docker.capabilities import BACKEND, DOCKER
from sandkasten_runtime.linux import egress
from sandkasten_runtime.linux.confinement import id_ranges
from sandkasten_runtime.linux.launcher import launch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten.model.sandbox.inspection import Inspection
    from sandkasten.model.sandbox.network_policy import NetworkCounts, NetworkPolicy
    from sandkasten_docker.docker_engine.docker_address import DockerAddress
    from sandkasten_runtime.linux.programs import Programs
    from sandkasten_runtime.linux.trust_files import Authority

# Runtimes whose containers use the network of the machine's kernel. Others have a network stack of
# their own, which does not see what is changed in the namespace later.
_RUNTIMES: Final = frozenset({"runc", "crun", "youki", "nvidia", "io.containerd.runc.v2"})
_CREDENTIALS: Final = struct.Struct("3i")
_TIMEOUT_S: Final = 5.0


def refusal(
    info: Mapping[str, Any], backend: str = BACKEND, *, volumes: bool
) -> UnsupportedByBackend | None:
    """Return why sandboxes of this engine cannot have a network; None if they can.

    `volumes`: whether the engine makes volumes for us.
    """
    runtime = str(info.get("DefaultRuntime") or "runc")
    if runtime not in _RUNTIMES:
        return _refused(
            f"its runtime {runtime} has a network stack of its own",
            "set default-runtime of the Docker Engine to runc, or use backend gvisor",
            backend,
        )
    if not volumes:
        remedy = f"set {settings_section(backend, DOCKER)}.workspace_mode: auto"
        return _refused("it makes no volumes for us", remedy, backend)
    return None


def inspection_refusal(address: DockerAddress) -> UnsupportedByBackend | None:
    """Return why sandboxes of this engine cannot be inspected; None if they can.

    The values of secrets go to the egress process over the connection to the engine.
    """
    if address.kind != "tcp" or address.tls is not None or is_loopback(address.host):
        return None
    return UnsupportedByBackend(
        "the Docker Engine is used over TCP without TLS, so that values of secrets could be read "
        "on the way to it",
        hint=f"give {address.section}.tls_ca, tls_cert and tls_key (or cert_path), or use ssh; "
        "or create the sandbox without network.secrets and network.inspect",
        backend=address.backend,
    )


def can_enter(address: DockerAddress) -> bool:
    """Return whether this process can enter the namespaces of the engine's containers."""
    return address.kind == "unix" and os.geteuid() == 0 and _docker_is_visible(address.path)


def _refused(why: str, remedy: str, backend: str = BACKEND) -> UnsupportedByBackend:
    return UnsupportedByBackend(
        f"this Docker Engine cannot give a sandbox a network: {why}",
        hint=f"{remedy}; or use backend local or oci, or network: none",
        backend=backend,
    )


def _docker_is_visible(path: str) -> bool:
    """Return whether the process that listens there is one of our pid namespace."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_TIMEOUT_S)
            connection.connect(path)
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid = int(_CREDENTIALS.unpack(raw)[0])
        if pid == 0:
            return False
        return os.stat(f"/proc/{pid}/ns/pid").st_ino == os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        # It has ended, or cannot be asked; the container's own process decides.
        return True


def open_network(
    directory: Path,
    programs: Programs,
    sandbox_id: SandboxId,
    container: Mapping[str, Any],
    spec: CellSpec,
    authority: Authority | None,
) -> None:
    """Prepare the namespace of a container that has just started, and start its egress process.

    `directory` is made for the files of that process; `close_network` removes it.
    """
    if container_usage.group(container) is None:
        raise _refused(
            "the process of its container is not one of this machine",
            "run the daemon on the Docker Engine's machine, or reach it over TCP or ssh",
        )
    close_network(directory, sandbox_id)  # of an earlier container of the same sandbox
    try:
        directory.mkdir(mode=0o700, parents=True)
        slot = id_ranges.lease(id_ranges.HOST_DIRECTORY, sandbox_id)
        user = id_ranges.base_of(slot) + id_ranges.COUNT - 1
        way_out = egress.prepare(directory, programs.egress, spec.network, spec.ceiling, user)
    except OSError as exc:
        raise disk_error(f"make the network of {sandbox_id}", exc, BackendUnavailable) from exc
    try:
        entered = {
            "pid": container["State"]["Pid"],
            "id": container["Id"],
            **container_usage.joinable(container),
        }
        plan = {"container": entered, "network": way_out.plan}
        launch(programs.launcher, plan, way_out.control.fileno())
    finally:
        way_out.close()
    if authority is not None and spec.inspection is not None:
        egress.begin_inspection(directory, authority, spec.inspection)


class EnteredNetwork:
    """The network of a container that was entered; `directory` has the files of its egress."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def change(
        self, policy: NetworkPolicy, reachable: Sequence[str], inspection: Inspection | None
    ) -> None:
        command = egress.change_command(policy, reachable, inspection)
        await egress.ask(self._directory, command, egress.CHANGE_S)

    async def cut(self) -> bool:
        return await asyncio.to_thread(egress.cut, self._directory)

    async def counts(self) -> NetworkCounts:
        return await egress.counts(self._directory)

    async def records(self, after: int, since: float) -> Sequence[Mapping[str, Any]]:
        return await asyncio.to_thread(egress.records, self._directory, after, since)


def close_network(directory: Path, sandbox_id: SandboxId) -> None:
    """End the process, remove the files and release the ids. Twice is fine."""
    if not directory.exists():
        return
    egress.cut(directory)
    slot = id_ranges.slot_of(id_ranges.HOST_DIRECTORY, sandbox_id)
    if slot is not None:
        id_ranges.release(id_ranges.HOST_DIRECTORY, slot, sandbox_id)
    shutil.rmtree(directory, ignore_errors=True)
