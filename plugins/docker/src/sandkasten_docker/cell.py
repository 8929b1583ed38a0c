"""One container: connecting to it, its usage, its network and its removal. Implements `ports.Cell`,
`Pausable`, `Candid` and `Networked`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import time
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any

from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    ProtocolViolation,
    SandboxLost,
    SandkastenError,
)
from sandkasten.model.sandbox.cell_spec import RUNNER_ID
from sandkasten.model.sandbox.inspection import created_without_inspection
from sandkasten.model.sandbox.limits import Unenforced
from sandkasten.model.spelling import one_line
from sandkasten_docker import container_usage, probe, resource_names
from sandkasten_docker.docker_engine.docker_client import Refused, translated
from sandkasten_docker.docker_engine.exec_stream import ExecStream
from sandkasten_runtime.wire.byte_streams import PrefixedStream
from sandkasten_runtime.wire.frame_codec import FROM_RUNNER, Decoder
from sandkasten_runtime.wire.unix_socket import connect_unix

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.inspection import Inspection
    from sandkasten.model.sandbox.network_policy import NetworkCounts, NetworkPolicy
    from sandkasten.model.sandbox.usage import Usage
    from sandkasten.ports import ByteStream
    from sandkasten_docker.cell_record import CellRecord
    from sandkasten_docker.container_network import EnteredNetwork
    from sandkasten_docker.docker_engine.docker_client import DockerClient
    from sandkasten_docker.egress_containers import EgressContainers
    from sandkasten_docker.session_volumes import SessionVolumes

# A runner is ready milliseconds after its container starts; ask the engine at this interval whether
# the container has ended instead.
_START_S, _LOOK_AGAIN_S, _ASK_AGAIN_S = 20.0, 0.004, 0.1
_HELLO_S = 20.0
_NOTICED_S = 0.2
_FIRST_BYTES = 64 * 1024
_SAID_CHARS = 300
_RELAY = (resource_names.RUNNER_PATH, "--relay", resource_names.SOCKET_PATH)
_WHO = f"{RUNNER_ID}:{RUNNER_ID}"
# The relay's message for a socket that is not bound yet.
_TOO_EARLY = "cannot reach"
# The engine's message for a container that has ended, which its own state may still call running.
_NOT_NOTICED = "stopped container"
_SILENT = "the runner says nothing"
_FULL = ("resource temporarily unavailable", "cannot allocate memory", "cannot fork")


class DockerCell:
    """A container that is a sandbox. `network` is how its egress process is reached, if it has
    one. `end` removes everything of it, given its id and its container.
    """

    def __init__(
        self,
        sandbox_id: SandboxId,
        api: DockerClient,
        record: CellRecord,
        container: str,
        network: EnteredNetwork | EgressContainers,
        end: Callable[[SandboxId, str], Awaitable[None]],
    ) -> None:
        self.id = sandbox_id
        self.container = container
        self._api = api
        self._record = record
        self._network = network
        self._end = end
        self._first: ByteStream | None = None
        self._figures = container_usage.DockerUsage(api, container)
        self._seen: Mapping[str, Any] | None = None

    @property
    def place(self) -> SessionVolumes:
        return self._record.place

    @property
    def pid(self) -> int:
        """The runner's pid on the engine's machine, as last read; 0 if unknown."""
        return int(((self._seen or {}).get("State") or {}).get("Pid") or 0)

    @property
    def unenforced(self) -> tuple[Unenforced, ...]:
        return tuple(Unenforced(*fields) for fields in self._record.unenforced)

    async def greet(self) -> None:
        """Wait until the runner has answered; the connection opened for that serves the next
        `dial`.
        """
        listener = self._record.place.listener(self.id)
        deadline = time.monotonic() + _START_S
        if listener is None:
            self._first = await self._relayed_by(deadline)
            return
        ask_at = time.monotonic() + _ASK_AGAIN_S
        while True:
            try:
                self._first = await _spoken(await _connect(listener))
            except OSError as exc:
                if time.monotonic() > deadline:
                    raise BackendUnavailable(
                        f"the runner of sandbox {self.id} does not answer: {exc.strerror or exc}",
                        hint="the Docker Engine may run in a virtual machine of its own: set "
                        f"{self._api.address.section}.workspace_mode: volume",
                    ) from exc
            else:
                return
            if time.monotonic() > ask_at:
                await self.check_alive()
                ask_at = time.monotonic() + _ASK_AGAIN_S
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def limit_sockets(self, size: int) -> None:
        """Limit socket buffers on cgroup v1, or record that they are not limited."""
        await self.check_alive()
        if not await asyncio.to_thread(container_usage.limit_sockets, self._seen or {}, size):
            lost = astuple(probe.unlimited_sockets())
            self._record = replace(self._record, unenforced=(*self._record.unenforced, lost))

    async def change_network(
        self,
        policy: NetworkPolicy,
        reachable: Sequence[str],
        inspection: Inspection | None = None,
    ) -> None:
        if inspection is not None and not self._record.inspected:
            raise created_without_inspection(self.id)
        await self._network.change(policy, reachable, inspection)

    async def cut_network(self) -> bool:
        return await self._network.cut()

    async def network_counts(self) -> NetworkCounts:
        return await self._network.counts()

    async def network_records(self, after: int, since: float = 0.0) -> Sequence[Mapping[str, Any]]:
        return await self._network.records(after, since)

    async def inspected(self) -> Mapping[str, Any]:
        """Return what the engine reports about the container now. Raise as `check_alive`."""
        await self.check_alive()
        return self._seen or {}

    async def dial(self) -> ByteStream:
        first, self._first = self._first, None
        if first is not None:
            return first
        listener = self._record.place.listener(self.id)
        if listener is None:
            return await self._relayed()
        try:
            if self._paused_by_others:
                # It accepts connections but never sends its hello, if it is still alive.
                await self.check_alive()
                self._check_not_paused()
            return await _connect(listener)
        except OSError as exc:
            await self.check_alive()
            raise SandboxLost(
                f"sandbox {self.id} does not answer: {exc.strerror or exc}",
                hint="it has ended; create a new one",
            ) from exc

    async def _relayed_by(self, deadline: float) -> ByteStream:
        """Connect through the relay, retrying: the relay may start before the runner listens, and
        the engine may notice that the container has ended only later.
        """
        while True:
            try:
                return await self._relayed(patient=False)
            except Busy as exc:
                retried = any(words in exc.message for words in (_TOO_EARLY, _NOT_NOTICED))
                if not retried or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _relayed(self, *, patient: bool = True) -> ByteStream:
        """Connect through the relay and wait for the runner's first bytes, which prove that it
        is there.
        """
        try:
            stream = ExecStream(await self._api.run_stream(self.container, _RELAY, _WHO))
        except Refused as exc:
            raise await self._no_way_in(exc.message, patient) from exc
        try:
            return await _spoken(stream)
        except OSError as exc:
            raise await self._no_way_in(stream.told or str(exc), patient) from exc

    async def _no_way_in(self, why: str, patient: bool) -> SandkastenError:
        """Return the error for a container in which no command can be started: it is about the
        container, not the engine.
        """
        try:
            await self.check_alive()
            self._check_not_paused()
            if patient:
                # The engine learns of an end slightly later than the connection.
                await asyncio.sleep(_NOTICED_S)
                await self.check_alive()
        except SandboxLost as lost:
            return lost
        if any(words in why.lower() for words in _FULL):
            return Busy(
                f"sandbox {self.id} has reached its limits; the Docker Engine cannot start a "
                "process",
                hint="its processes have used up pids_limit or memory; try again, or destroy it",
            )
        return Busy(
            f"sandbox {self.id} does not answer: {one_line(why)}",
            hint="try again, or destroy it",
        )

    @property
    def _paused_by_others(self) -> bool:
        """Return whether the container was paused by another program when last inspected. A
        sandbox that we paused is never dialled.
        """
        return bool(((self._seen or {}).get("State") or {}).get("Paused"))

    def _check_not_paused(self) -> None:
        if self._paused_by_others:
            raise Busy(
                f"sandbox {self.id} was paused by another program",
                hint=f"resume it, or docker unpause {resource_names.container_name(self.id)}",
            )

    async def check_alive(self) -> None:
        """Raise SandboxLost if the container has ended; BackendUnavailable if the engine does
        not answer.
        """
        try:
            container = await self._api.inspect(self.container)
        except Refused as exc:
            if exc.not_there:
                raise _gone(self.id, "its container is gone") from exc
            raise translated(exc, f"sandbox {self.id} cannot be looked at") from exc
        if not is_running(container):
            state = container.get("State") or {}
            killed = " (out of memory)" if state.get("OOMKilled") else ""
            raise _gone(self.id, f"its container has ended, status {state.get('ExitCode')}{killed}")
        self._seen = container

    async def usage(self) -> Usage:
        if self._seen is None:
            await self.check_alive()
        assert self._seen is not None
        usage = await asyncio.to_thread(container_usage.from_kernel, self._seen)
        if usage is not None:
            return usage
        try:
            return await self._figures.usage()
        except Refused as exc:
            if exc.not_there:
                raise _gone(self.id, "its container is gone") from exc
            raise translated(exc, f"sandbox {self.id} cannot be looked at") from exc

    async def pause(self) -> None:
        await self._paused(self._api.pause, "already paused")

    async def resume(self) -> None:
        await self._paused(self._api.unpause, "is not paused")

    async def _paused(self, verb: Callable[[str], Awaitable[None]], done: str) -> None:
        try:
            await verb(self.container)
        except Refused as exc:
            if exc.not_there:
                raise _gone(self.id, "its container is gone") from exc
            if done not in exc.message:
                await self.check_alive()
                raise translated(exc, f"sandbox {self.id} could not be paused or resumed") from exc

    async def let_go(self) -> None:
        """Close the connection kept for the next `dial`: the sandbox is being removed."""
        first, self._first = self._first, None
        if first is not None:
            await first.aclose()

    async def destroy(self) -> None:
        await self.let_go()
        await self._end(self.id, self.container)


def is_running(container: Mapping[str, Any]) -> bool:
    state = container.get("State") or {}
    return bool(state.get("Running")) and not state.get("Dead")


async def _spoken(stream: ByteStream) -> ByteStream:
    """Return the stream when its first bytes have arrived; otherwise close it and raise OSError."""
    try:
        async with asyncio.timeout(_HELLO_S):
            first = await stream.receive(_FIRST_BYTES)
        if not first:
            raise ConnectionResetError(_SILENT)
        _check(first)
    except TimeoutError as exc:
        await stream.aclose()
        raise TimeoutError(_SILENT) from exc
    except (OSError, asyncio.CancelledError):
        await stream.aclose()
        raise
    return PrefixedStream(first, stream)


def _check(first: bytes) -> None:
    """Raise if the engine could not start the relay; it reports that in the output."""
    try:
        Decoder(FROM_RUNNER).feed(first)
    except ProtocolViolation as exc:
        raise ConnectionResetError(first.decode(errors="replace").strip()[:_SAID_CHARS]) from exc


async def _connect(path: Path) -> ByteStream:
    # The directory belongs to the runner's uid: a link there must not redirect us to another
    # socket. Dial what was opened.
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK))
        return await connect_unix(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _gone(sandbox_id: SandboxId, why: str) -> SandboxLost:
    return SandboxLost(f"sandbox {sandbox_id} is gone: {why}", hint="create a new one")
