"""One Pod: connecting to its runner, its usage and its removal. Implements `ports.Cell` and
`Candid`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import BackendUnavailable, Busy, SandkastenError
from sandkasten.model.sandbox.limits import Unenforced
from sandkasten.model.sandbox.usage import Usage
from sandkasten_kubernetes import (
    object_watch,
    pod_names,
    pod_network,
    pod_status,
    refusals,
)
from sandkasten_kubernetes.api.cluster_client import ApiRefused
from sandkasten_runtime.backends.gate import entry_keys, gate_stream
from sandkasten_runtime.wire.byte_streams import PrefixedStream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from sandkasten.model.ids import SandboxId
    from sandkasten.ports import ByteStream
    from sandkasten_kubernetes.api.cluster_client import ClusterClient
    from sandkasten_kubernetes.kubernetes_options import KubernetesOptions
    from sandkasten_runtime.backends.gate.entry_keys import EntryKeys

_CONNECT_S: Final = 5.0
_HELLO_S: Final = 20.0
# The gate gives up after 20 s if the network stays open; the kubelet reports it a moment later.
_START_S: Final = 30.0
_FIRST_BYTES: Final = 64 * 1024
_RETRY_S: Final = 0.02
# A cluster in which Pods can be reached lets us in at once; the gate may still be starting.
_DIRECT_S: Final = 3.0
_NOTICED_S, _NOTICE_TRIES = 0.3, 10
UNENFORCED: Final = (
    Unenforced(
        "pids",
        "Kubernetes has no limit of processes for one Pod",
        "set podPidsLimit of the kubelets",
    ),
    Unenforced(
        "workspace",
        "the kubelet ends a Pod whose workspace is too large, some time after it became so",
        "use nodes with enough disk",
    ),
)
_NAMED_WORKSPACE: Final = Unenforced(
    "workspace",
    "the storage of the cluster decides whether a named workspace is held to its size",
    "use a StorageClass whose volumes have a size of their own",
)


class Ways:
    """Whether this daemon reaches Pods at their addresses; None: not tried yet. A No is tried again
    with each connection, unless the operator set it.
    """

    def __init__(self, options: KubernetesOptions) -> None:
        self.direct: bool | None = {"direct": True, "exec": False}.get(options.reach)
        self.fixed = self.direct is not None


class KubernetesCell:
    """A Pod that is a sandbox. `end` removes everything of it."""

    def __init__(
        self,
        sandbox_id: SandboxId,
        client: ClusterClient,
        options: KubernetesOptions,
        ways: Ways,
        pod: Mapping[str, Any],
        keys: EntryKeys | None,
        end: Callable[[SandboxId], Awaitable[None]],
    ) -> None:
        """`keys`: None if they are to be read when the runner is dialled for the first time."""
        self.id = sandbox_id
        self._client = client
        self._options = options
        self._ways = ways
        self._keys = keys
        self._end = end
        self._first: ByteStream | None = None
        self._gone = False
        self._uid = str((pod.get("metadata") or {}).get("uid") or "")
        self._address = pod_status.address(pod)
        self._limits = _limits(pod)
        self.network_class = pod_status.network_class(pod)
        self.node = pod_status.node_address(pod)
        """The address of its node."""
        labels = (pod.get("metadata") or {}).get("labels") or {}
        self._named_workspace = pod_names.LABEL_CLAIM in labels

    @property
    def unenforced(self) -> tuple[Unenforced, ...]:
        pids, workspace = UNENFORCED
        gaps = (pids, _NAMED_WORKSPACE if self._named_workspace else workspace)
        if self.network_class == pod_network.FULL:
            return (*gaps, pod_network.UNENFORCED)
        return gaps

    @property
    def address(self) -> str:
        """Return the address of its gate, with the port."""
        host = f"[{self._address}]" if ":" in self._address else self._address
        return f"{host}:{self._options.port}"

    async def greet(self) -> None:
        """Wait until the runner has answered; that connection serves the next `dial`."""
        deadline = asyncio.get_running_loop().time() + _START_S
        while self._first is None:
            try:
                if self._ways.direct is None:
                    await self._find_way()
                else:
                    self._first = await self._spoken(_START_S)
            except OSError as exc:
                await self.check_alive()
                if asyncio.get_running_loop().time() > deadline:
                    raise self._silent(str(exc)) from exc
                await asyncio.sleep(_RETRY_S)

    async def _find_way(self) -> None:
        """Try the Pod's address first; if that fails for long, use streams of the API server."""
        until = asyncio.get_running_loop().time() + _DIRECT_S
        while True:
            try:
                opened = await self._direct(_DIRECT_S)
            except OSError:
                await self.check_alive()
                if asyncio.get_running_loop().time() > until:
                    break
                await asyncio.sleep(_RETRY_S)
            else:
                # The gate was there. The runner follows when the network is closed.
                self._ways.direct = True
                await opened.aclose()
                return
        self._first = await _greeted(await self._streamed(), _START_S)
        self._ways.direct = False

    async def dial(self) -> ByteStream:
        if self._gone:
            raise pod_status.lost(self.id, "it was removed")
        first, self._first = self._first, None
        if first is not None:
            return first
        try:
            if self._ways.direct is not False:
                # Any process may answer at the address of a Pod that is gone; only the gate of this
                # one has its key.
                return await self._direct(_CONNECT_S)
            return await self._spoken(_HELLO_S)
        except OSError as exc:
            raise await self._no_way_in(str(exc)) from exc

    async def _spoken(self, hello_s: float) -> ByteStream:
        if self._ways.direct is not False:
            return await _greeted(await self._direct(_CONNECT_S), hello_s)
        if self._ways.fixed:
            return await _greeted(await self._streamed(), hello_s)
        # One slow gate does not prove that Pods cannot be reached. So the address is tried again
        # beside the stream; if it can be reached, it answers first.
        trying = asyncio.ensure_future(self._direct(_CONNECT_S))
        try:
            return await _greeted(await self._streamed(), hello_s)
        except (OSError, BackendUnavailable):
            await asyncio.wait([trying])
            raise
        finally:
            await self._learn_from(trying)

    async def _learn_from(self, trying: asyncio.Future[ByteStream]) -> None:
        """Note whether the Pod was reached. If that is not known yet, it was not."""
        trying.cancel()
        await asyncio.wait([trying])
        if not trying.cancelled() and trying.exception() is None:
            self._ways.direct = True
            await trying.result().aclose()

    async def _direct(self, timeout_s: float) -> ByteStream:
        keys = self._keys = self._keys or await self._read_keys()
        return await gate_stream.connect(self._address, self._options.port, keys, timeout_s)

    async def dial_network(self) -> ByteStream:
        """Connect to the egress process of this sandbox. Raise OSError."""
        if self._gone:
            raise pod_status.lost(self.id, "it was removed")
        if self._ways.direct is False:
            return await self._streamed(pod_names.NETWORK_CONTROL)
        keys = self._keys = self._keys or await self._read_keys()
        port = self._options.port
        return await gate_stream.connect(self._address, port, keys.to_network(), _CONNECT_S)

    async def _read_keys(self) -> EntryKeys:
        try:
            secret = await self._client.get("secrets", pod_names.pod_name(self.id))
        except ApiRefused as exc:
            if exc.not_there:
                raise pod_status.lost(self.id, "the Secret with its key is gone") from exc
            raise refusals.translated(exc, f"the key of sandbox {self.id} cannot be read") from exc
        keys = entry_keys.from_data(secret.get("data") or {})
        if keys is None:
            raise pod_status.lost(self.id, "the Secret with its key is damaged")
        return keys

    async def _streamed(self, path: str = pod_names.LISTENER) -> ByteStream:
        """Connect through the API server: a relay in the gate's container, where no code of the
        sandbox runs.
        """
        command = (f"{self._options.programs}/sandkasten-runner", "--relay", path)
        name = pod_names.pod_name(self.id)
        try:
            return await self._client.stream(name, pod_names.GATE_CONTAINER, command)
        except ApiRefused as exc:
            raise ConnectionRefusedError(exc.message) from exc

    async def _no_way_in(self, why: str) -> SandkastenError:
        """Return the error for a Pod that cannot be reached: lost, or alive and silent."""
        try:
            # The kubelet looks at its containers once a second, and then reports to the API server.
            for _ in range(_NOTICE_TRIES):
                await self.check_alive()
                await asyncio.sleep(_NOTICED_S)
            await self.check_alive()
        except SandkastenError as exc:
            return exc
        return self._silent(why)

    def _silent(self, why: str) -> SandkastenError:
        return Busy(
            f"sandbox {self.id} does not answer: {why[:300]}",
            hint="try again; if Pods cannot be reached from here, set backends.kubernetes.reach: "
            "exec",
        )

    async def check_alive(self) -> None:
        """Raise SandboxLost if the Pod has ended; IsolationRefused if it was not started because
        its network is open; BackendUnavailable if the API server is unreachable.
        """
        try:
            pod = await self._client.get("pods", pod_names.pod_name(self.id))
        except ApiRefused as exc:
            if exc.not_there:
                raise pod_status.lost(self.id, "its Pod is gone") from exc
            raise refusals.translated(exc, f"sandbox {self.id} cannot be looked at") from exc
        if self._uid and str((pod.get("metadata") or {}).get("uid") or "") != self._uid:
            raise pod_status.lost(self.id, "its Pod was replaced by another one")
        stayed_open = pod_status.stayed_open(self.id, pod)
        if stayed_open is not None:
            raise stayed_open
        error = pod_status.gone(self.id, await object_watch.explained(self._client, pod))
        if error is not None:
            raise error
        self._address = pod_status.address(pod) or self._address

    async def usage(self) -> Usage:
        """Return the limits: what a Pod uses is counted on its node, where we are not."""
        if self._gone:
            raise pod_status.lost(self.id, "it was removed")
        return Usage(memory_limit_bytes=self._limits)

    def forget(self) -> None:
        """Note that the sandbox was removed."""
        self._gone = True

    async def let_go(self) -> None:
        """Close the connection kept for the next `dial`."""
        first, self._first = self._first, None
        if first is not None:
            await first.aclose()

    async def destroy(self) -> None:
        await self.let_go()
        await self._end(self.id)


async def _greeted(stream: ByteStream, hello_s: float) -> ByteStream:
    """Return the stream when the runner's first bytes are there; else close it, raise OSError."""
    try:
        async with asyncio.timeout(hello_s):
            first = await stream.receive(_FIRST_BYTES)
        if not first:
            raise ConnectionResetError(getattr(stream, "told", "") or "the runner says nothing")
    except (OSError, asyncio.CancelledError):
        await stream.aclose()
        raise
    return PrefixedStream(first, stream)


def _limits(pod: Mapping[str, Any]) -> int | None:
    for container in (pod.get("spec") or {}).get("containers") or ():
        if container.get("name") == pod_names.SANDBOX_CONTAINER:
            text = str(((container.get("resources") or {}).get("limits") or {}).get("memory") or "")
            return int(text) if text.isdigit() else None
    return None
