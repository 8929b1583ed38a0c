"""A Sandkasten backend that runs each sandbox in a container of Podman: a template for your own.

It supports images of Sandkasten's store, and no network. Each container runs Sandkasten's runner,
which listens on a Unix socket in a directory of the host and does commands, shells and files.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from asyncio.subprocess import create_subprocess_exec
from contextlib import suppress
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from sandkasten.errors import BackendUnavailable, Conflict, SandboxLost, UnsupportedByBackend
from sandkasten.model.backends.backend_features import BackendFeatures
from sandkasten.model.backends.capabilities import Capabilities, check_features
from sandkasten.model.ids import SandboxId
from sandkasten.model.sandbox.cell_spec import base_environment
from sandkasten.model.sandbox.readiness import Readiness
from sandkasten.model.sandbox.usage import Usage
from sandkasten.ports.backend_plugins import BackendPlugin
from sandkasten_runtime.backends.lazy_backend import LazyBackend
from sandkasten_runtime.linux.programs import Programs
from sandkasten_runtime.wire.channel import Channel
from sandkasten_runtime.wire.unix_socket import connect_unix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten.ports import Backend, ByteStream
    from sandkasten.ports.backend_plugins import BackendContext

CAPABILITIES = Capabilities(
    strength=1,
    features=BackendFeatures(
        summary="a container of Podman",
        sessions=True,
        networks=("none",),
        limits=("cpu", "memory", "pids", "workspace"),
        packages=True,
    ),
)
RUN = "/run/sandkasten"
# The runner becomes the sandbox's user, and ends that user's processes.
RUNNER_CAPABILITIES = "CHOWN,SETUID,SETGID,SETPCAP,KILL"


class PodmanBackend:
    name = "podman"
    capabilities = CAPABILITIES

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def directory(self, sandbox_id: SandboxId) -> Path:
        return self._directory / "cells" / sandbox_id

    async def probe(self) -> Readiness:
        try:
            await self.ping()
        except BackendUnavailable as exc:
            return Readiness(ready=False, reason=exc.message, remedy=exc.hint)
        return Readiness(ready=True)

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> PodmanCell:
        check_features(self.name, CAPABILITIES.features, spec)
        if spec.image.kind != "layers":
            raise UnsupportedByBackend("podman requires an image", hint="sandkasten image ls")
        directory = self.directory(sandbox_id)
        try:
            directory.mkdir(parents=True)
        except FileExistsError as exc:
            raise Conflict(f"sandbox {sandbox_id} exists", hint="choose another id") from exc
        try:
            for name in ("root", "upper", "work", "listen"):
                (directory / name).mkdir()
            os.chown(directory / "listen", 999, 999)
            layers = ":".join(reversed(spec.image.layers))
            options = f"lowerdir={layers},upperdir={directory}/upper,workdir={directory}/work"
            await _run("mount", "-t", "overlay", "-o", options, "overlay", f"{directory}/root")
            await self._podman("run", "--detach", "--name", sandbox_id, *_options(directory, spec))
            cell = PodmanCell(self, sandbox_id)
            await cell.wait_until_ready()
        except BaseException:
            await asyncio.shield(self.discard(sandbox_id))
            raise
        return cell

    async def attach(self, sandbox_id: SandboxId) -> PodmanCell:
        running = await self._podman("ps", "--quiet", "--filter", f"name={sandbox_id}")
        if not running.strip():
            raise SandboxLost(f"sandbox {sandbox_id} has no container that runs")
        return PodmanCell(self, sandbox_id)

    async def owned(self) -> Sequence[SandboxId]:
        cells = self._directory / "cells"
        return [SandboxId(name) for name in os.listdir(cells)] if cells.is_dir() else []

    async def discard(self, sandbox_id: SandboxId) -> None:
        if (directory := self.directory(sandbox_id)).exists():
            await self._podman("rm", "--force", "--ignore", "--time", "0", sandbox_id)
            with suppress(BackendUnavailable):  # it is not mounted
                await _run("umount", "--lazy", f"{directory}/root")
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    async def ping(self) -> None:
        await self._podman("info")

    async def aclose(self) -> None: ...

    async def _podman(self, *arguments: str) -> str:  # with folders of its own
        own, names = self._directory, ("root", "runroot", "network-config-dir")
        options = (f"--{name}={own}/{name}" for name in names)
        fixed = ("--storage-driver=vfs", "--cgroup-manager=cgroupfs")
        return await _run("podman", *options, *fixed, *arguments)


class PodmanCell:
    def __init__(self, backend: PodmanBackend, sandbox_id: SandboxId) -> None:
        self._backend, self._id = backend, sandbox_id

    async def dial(self) -> ByteStream:
        try:
            return await connect_unix(f"{self._backend.directory(self._id)}/listen/socket")
        except OSError as exc:
            raise SandboxLost(f"sandbox {self._id} does not answer: {exc}") from exc

    async def wait_until_ready(self) -> None:
        """Return when the runner has sent its hello."""
        for _ in range(3000):  # 30 seconds
            with suppress(SandboxLost):
                return await (await Channel.open(await self.dial())).aclose()
            await asyncio.sleep(0.01)
        raise BackendUnavailable("the runner did not start", backend="podman")

    async def usage(self) -> Usage:
        return Usage()

    async def destroy(self) -> None:
        await self._backend.discard(self._id)


def _options(directory: Path, spec: CellSpec) -> list[str]:
    limits, runner = spec.limits, Programs.found(None, None).runner
    tmpfs = {
        "/workspace": limits.workspace_bytes,
        "/home/sandbox": limits.workspace_bytes,
        "/tmp": limits.tmp_bytes,
        f"{RUN}/state": 8 << 20,
    }
    return [
        *("--network=none", f"--hostname={spec.hostname}", "--user=0:0", "--log-driver=none"),
        *("--cap-drop=all", f"--cap-add={RUNNER_CAPABILITIES}", "--security-opt=no-new-privileges"),
        *(f"--memory={limits.memory_bytes}", f"--memory-swap={limits.memory_bytes}"),
        *(f"--cpus={limits.cpus}", f"--pids-limit={limits.pids}", f"--shm-size={limits.tmp_bytes}"),
        *(f"--ulimit=nofile={limits.open_files}", "--ulimit=nproc=4096", "--ulimit=core=0"),
        *(f"--env={name}={value}" for name, value in base_environment(spec).items()),
        *(f"--tmpfs={path}:size={size},mode=1777" for path, size in tmpfs.items()),
        *(f"--volume={mount.source}:{mount.target}:ro" for mount in spec.mounts),
        *(f"--volume={directory}/listen:{RUN}/listen", f"--volume={runner}:{RUN}/bin/runner:ro"),
        *(f"--entrypoint={RUN}/bin/runner", "--read-only", "--rootfs", f"{directory}/root"),
        *("--listen", f"{RUN}/listen/socket", "--run-as", "999:999", "--user", "1000:1000"),
        *("--guard", f"{RUN}/bin/runner", "--guard", f"{RUN}/listen", "--guard", f"{RUN}/state"),
        *("--state-dir", f"{RUN}/state", "--workspace", "/workspace", "--home", "/home/sandbox"),
        *("--own", "/workspace", "--own", "/home/sandbox"),
    ]


async def _run(program: str, *arguments: str) -> str:
    """Run a program of the host and return its output. Raise BackendUnavailable if it fails."""
    with TemporaryFile() as output, TemporaryFile() as error:  # conmon would keep pipes open
        try:
            process = await create_subprocess_exec(program, *arguments, stdout=output, stderr=error)
        except FileNotFoundError as exc:
            raise BackendUnavailable(f"{program} is not installed", hint="install podman") from exc
        try:
            await process.wait()
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        answer, reason = (os.pread(file.fileno(), 1 << 20, 0) for file in (output, error))
    if process.returncode != 0:
        raise BackendUnavailable(f"{program} failed: {reason[-500:].decode(errors='replace')}")
    return answer.decode(errors="replace")


def _open(context: BackendContext) -> Mapping[str, Backend]:
    directory = context.data_dir / "podman"
    backend = LazyBackend("podman", CAPABILITIES, directory, lambda: PodmanBackend(directory))
    return {"podman": backend}


PLUGIN = BackendPlugin("podman", CAPABILITIES, _open)
