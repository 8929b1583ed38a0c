"""A backend for tests: the real runner in a root of its own, without anything that isolates.

bubblewrap shows the host's /usr and /etc, a private /workspace, /tmp and home, and nothing else is
done: no cgroups, no id range, no seccomp filter. So a sandbox is ready after a few milliseconds,
for root and for an ordinary user alike. It lives in this process: it ends with `destroy`, with the
event loop that created it, or with the process, whichever comes first.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.errors import BackendUnavailable, Conflict, InvalidImage, SandboxLost
from sandkasten.model.backends.capabilities import UNKNOWN, Capabilities
from sandkasten.model.sandbox.cell_spec import TMP, WORKSPACE, base_environment, home, user_id
from sandkasten.model.sandbox.network_policy import unsupported_network
from sandkasten.model.sandbox.readiness import Readiness, Requirement
from sandkasten.model.sandbox.usage import Usage
from sandkasten_runtime.backends.backend_catalog import capabilities_of
from sandkasten_runtime.linux.launcher import listen
from sandkasten_runtime.linux.programs import Programs, find_bwrap
from sandkasten_runtime.linux.storage import host_root
from sandkasten_runtime.linux.storage.workspace_directory import WorkspaceDirectory
from sandkasten_runtime.linux.undoable_work import whole_or_nothing
from sandkasten_runtime.wire.unix_socket import connect_unix
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten.ports import ByteStream

_RUN = "/run/sandkasten"
# From a readable socket to a closed channel: the callback, the task that reads, what waits for it.
_TURNS = 5


@dataclass(slots=True)
class _Place:
    """The process of bubblewrap, its child (the runner), and the directory of their socket."""

    spec: CellSpec
    directory: Path
    process: subprocess.Popen[bytes]
    runner: int

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """End every process of it; the kernel takes the rest of the namespace with the runner."""
        while self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.runner, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1)


def standing_for(backend: str) -> Capabilities:
    """Return what a backend of the catalog can do, without what only it implements."""
    return replace(
        capabilities_of(backend),
        run_once=False,
        own_images=False,
        own_workspaces=False,
        maintains_workspaces=False,
        remote=False,
        refuses_networks=False,
        counts_after_end=False,
    )


class UnisolatedBackend:
    """See `ports.Backend`. `directory` holds the sockets and the named workspaces."""

    name = "unisolated"
    capabilities = UNKNOWN

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or Path(tempfile.mkdtemp(dir=_scratch()))
        self._places: dict[SandboxId, _Place] = {}
        # Directories, because only root could mount an image.
        self.workspaces = WorkspaceDirectory(self._directory / "workspaces", images=False)

    async def probe(self) -> Readiness:
        lacking = [*Programs.found(None, None).missing(), *(() if find_bwrap() else ["bwrap"])]
        needed = Requirement("programs", ok=not lacking, state=", ".join(lacking) or "found")
        return Readiness(
            ready=not lacking,
            requirements=(needed,),
            reason=f"not installed: {needed.state}" if lacking else "",
        )

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> UnisolatedCell:
        if not spec.network.closed:
            raise unsupported_network("unisolated")
        if sandbox_id in self._places:
            raise Conflict(f"sandbox {sandbox_id} exists already", hint="choose another id")

        def start() -> _Place:
            place = self._places[sandbox_id] = _start(self._directory, spec)
            return place

        place = await whole_or_nothing(start, lambda: self._remove(sandbox_id))
        return UnisolatedCell(self, sandbox_id, place)

    async def attach(self, sandbox_id: SandboxId) -> UnisolatedCell:
        place = self._places.get(sandbox_id)
        if place is None or not place.alive:
            raise _lost(sandbox_id)
        return UnisolatedCell(self, sandbox_id, place)

    async def owned(self) -> Sequence[SandboxId]:
        return tuple(self._places)

    async def discard(self, sandbox_id: SandboxId) -> None:
        await asyncio.to_thread(self._remove, sandbox_id)

    async def ping(self) -> None:
        """It needs nothing else."""

    async def aclose(self) -> None:
        """It keeps nothing open."""

    def _remove(self, sandbox_id: SandboxId) -> None:
        place = self._places.get(sandbox_id)
        if place is not None:
            place.kill()
            shutil.rmtree(place.directory, ignore_errors=True)
            self._places.pop(sandbox_id, None)


class UnisolatedCell:
    """See `ports.Cell`."""

    def __init__(self, backend: UnisolatedBackend, sandbox_id: SandboxId, place: _Place) -> None:
        self._backend = backend
        self._id = sandbox_id
        self._place = place

    async def dial(self) -> ByteStream:
        if not self._place.alive:
            raise _lost(self._id)
        try:
            return await connect_unix(os.fspath(self._place.directory / "socket"))
        except OSError as exc:
            raise _lost(self._id) from exc

    async def usage(self) -> Usage:
        if not self._place.alive:
            raise _lost(self._id)
        limits = self._place.spec.limits
        return Usage(memory_limit_bytes=limits.memory_bytes, pids_limit=limits.pids)

    async def destroy(self) -> None:
        await self._backend.discard(self._id)

    async def crash(self) -> None:
        """End the sandbox as a kill of its runner does. The backend still owns what is left."""
        await asyncio.to_thread(self._place.kill)
        await _connections_noticed()

    async def ended(self) -> None:
        """Wait until the runner has ended, for whatever reason."""
        await asyncio.to_thread(self._place.process.wait, PATIENCE_S)
        await _connections_noticed()


async def _connections_noticed() -> None:
    """Let what reads from a dead runner on this loop read the end: the kernel has it already."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def _start(directory: Path, spec: CellSpec) -> _Place:
    """Start bubblewrap and the runner in it; blocking. BackendUnavailable: nothing is left.

    bubblewrap ends with the thread that calls this: a worker of the event loop's pool.
    """
    for layer in spec.image.layers:
        # The host's root is shown in place of the image, which must be there all the same.
        if not os.path.isdir(layer):
            raise InvalidImage(f"layer {layer} is missing", hint="import the image again")
    directory.mkdir(parents=True, exist_ok=True)
    own = Path(tempfile.mkdtemp(prefix="cell-", dir=directory))
    listener = listen(own / "socket")
    ready, ready_inside = os.pipe()
    info, info_inside = os.pipe()
    inherited = (listener.fileno(), ready_inside, info_inside)
    try:
        process = subprocess.Popen(
            [
                find_bwrap() or "bwrap",
                *_bwrap_args(spec, info_inside),
                f"{_RUN}/runner",
                *("--listen-fd", str(listener.fileno()), "--ready-fd", str(ready_inside)),
                *("--state-dir", f"{_RUN}/state", "--workspace", WORKSPACE, "--home", home(spec)),
            ],
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    finally:
        listener.close()
        os.close(ready_inside)
        os.close(info_inside)
    assert process.stderr is not None
    with process.stderr, os.fdopen(ready, "rb") as answer, os.fdopen(info) as told:
        if answer.read(1) == b"1":
            _remember(process)
            return _Place(spec, own, process, int(json.load(told)["child-pid"]))
        reason = process.communicate()[1].decode(errors="replace").strip()
    shutil.rmtree(own)
    raise BackendUnavailable(f"the runner did not start: {reason}", hint="is bubblewrap there?")


def _bwrap_args(spec: CellSpec, info_fd: int) -> list[str]:
    limits, user = spec.limits, str(user_id(spec))
    args = ["--unshare-user", "--uid", user, "--gid", user, "--unshare-pid", "--unshare-net"]
    args += ["--die-with-parent", "--new-session", "--as-pid-1", "--info-fd", str(info_fd)]
    args += host_root_args()
    args += ["--perms", "1777", "--size", str(limits.tmp_bytes), "--tmpfs", TMP]
    if spec.workspace is not None:
        args += ["--bind", spec.workspace.path, WORKSPACE]
    else:
        args += ["--perms", "0755", "--size", str(limits.workspace_bytes), "--tmpfs", WORKSPACE]
    args += ["--size", str(limits.workspace_bytes), "--tmpfs", home(spec)]
    args += ["--symlink", "workspace", "/work"]
    args += ["--perms", "0755", "--dir", f"{_RUN}/state"]
    args += ["--ro-bind", os.fspath(Programs.found(None, None).runner), f"{_RUN}/runner"]
    for mount in spec.mounts:
        args += ["--ro-bind", mount.source, mount.target]
    args += ["--chdir", "/", "--clearenv"]
    for name, value in base_environment(spec).items():
        args += ["--setenv", name, value]
    return args


def host_root_args() -> list[str]:
    """Return bubblewrap's arguments for the host's programs, /proc and /dev."""
    args = ["--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc"]
    for name, target in _root().links:
        args += ["--symlink", target, f"/{name}"]
    for name in _root().directories:
        args += ["--ro-bind", f"/{name}", f"/{name}"]
    return [*args, "--proc", "/proc", "--dev", "/dev"]


@cache
def _root() -> host_root.HostRoot:
    return host_root.look()


@cache
def _scratch() -> str:
    """One directory for all backends of this process that were not given one."""
    path = tempfile.mkdtemp(prefix="sandkasten-unisolated-")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    return path


# Most of them end when a loop does, without `destroy`; each is waited for all the same.
_started: list[subprocess.Popen[bytes]] = []


def _remember(process: subprocess.Popen[bytes]) -> None:
    _started[:] = [process, *(one for one in _started if one.poll() is None)]


@atexit.register
def _end_all() -> None:
    for process in _started:
        process.kill()
        process.wait()


def _lost(sandbox_id: SandboxId) -> SandboxLost:
    return SandboxLost(
        f"sandbox {sandbox_id} is not running in this process",
        hint="it ended, or another process created it; create a new one",
        sandbox_id=sandbox_id,
    )
