"""A server that speaks Modal's published protocol, and whose sandboxes really run.

Made from the service classes that the `modal` package ships. A call that is not served here is
answered with UNIMPLEMENTED, so a client that begins to use another one fails by name. It runs in a
thread of the test process; `faults` makes its answers fail.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from grpclib import GRPCError, Status
from grpclib.server import Server
from modal._utils.grpc_utils import custom_detail_codec
from modal_proto import api_pb2
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

from tests.cloud.modal.modal_control import ControlPlane, new_name
from tests.cloud.modal.modal_router import TaskRouter
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from grpclib.protocol import H2Protocol
    from grpclib.server import Stream

    from tests.cloud.modal.modal_control import Rented

T = TypeVar("T")
# A frame of gRPC without its first byte: four bytes, a field that never ends.
_GARBLED = b"\0\0\0\4\x0a\xff\xff\xff"


@dataclass(slots=True)
class Fault:
    """How the next answers to one call fail."""

    kind: Literal["status", "cut", "lost", "hang", "hold", "mute", "garbled", "compressed", "empty"]
    """`status`: refused; `cut`: the stream is reset and nothing was done; `lost`: it is done, and
    the answer is cut in half; `hang`: nothing is done until the fault is taken away; `hold`: the
    same, and then it is done even if the client has gone; `mute`: it is done, and there is no
    answer until the fault is taken away; `garbled`: it is done, and the answer is not a message;
    `compressed`: it is done, and the answer says that it is compressed; `empty`: it is done, and
    the answer has no fields."""
    status: Status = Status.UNAVAILABLE
    message: str = "a fault of this test"
    retry_after_s: float | None = None
    times: int = 1_000_000
    hit: threading.Event = field(default_factory=threading.Event)
    """Set when a call has met the fault; with `mute`, when it was done."""

    def error(self) -> GRPCError:
        policy = api_pb2.RPCRetryPolicy(retry_after_secs=self.retry_after_s or 0.0)
        details = None if self.retry_after_s is None else [policy]
        return GRPCError(self.status, self.message, details)


class _Server(Server):
    """A server that closes the connections of clients that do not."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.protocols: list[H2Protocol] = []

    def _protocol_factory(self) -> H2Protocol:
        made = super()._protocol_factory()
        self.protocols.append(made)
        return made

    def cut(self) -> None:
        for one in self.protocols:
            one.connection.close()


class ModalServer:
    """A context manager. `images`: the layers of each image that can be named, uppermost first."""

    def __init__(self, images: Mapping[str, Sequence[str]]) -> None:
        self.token_id, self.token_secret = "ak-" + new_name(12), "as-" + new_name(12)
        self.faults: dict[str, Fault] = {}
        self.calls: list[str] = []
        self.control = ControlPlane(images)
        self._router = TaskRouter(lambda task_id: self.control.rented(task_id).machine)
        self._held: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="modal-server", daemon=True)
        self._ready = threading.Event()
        self._stop = asyncio.Event()

    def __enter__(self) -> ModalServer:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.faults.clear()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which the SDK finds this server."""
        return {
            "MODAL_SERVER_URL": self.control.url,
            "MODAL_TOKEN_ID": self.token_id,
            "MODAL_TOKEN_SECRET": self.token_secret,
        }

    @property
    def made(self) -> list[Rented]:
        """Every sandbox that was ever started."""
        return self.control.made

    @property
    def running(self) -> list[Rented]:
        return self.control.running

    def later(self, what: Coroutine[Any, Any, T]) -> Future[T]:
        """Run something in the server's own loop."""
        return asyncio.run_coroutine_threadsafe(what, self._loop)

    def clear(self) -> None:
        """End all sandboxes."""

        async def end() -> None:
            for one in self.running:
                await one.machine.end()
                await one.ended.wait()

        self.later(end()).result(PATIENCE_S)

    def expire_tokens(self) -> None:
        """Refuse what was issued for streams and for calls until now."""
        self.control.tokens.clear()

    def vanish(self, rented: Rented) -> None:
        """End a sandbox as a worker that dies does, and forget it."""

        async def end() -> None:
            self.made.remove(rented)
            await rented.machine.end()

        self.later(end()).result(PATIENCE_S)

    # -- serving

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._run())
        self._loop.close()

    async def _run(self) -> None:
        services = [self._service(ModalClientBase), self._service(TaskCommandRouterBase)]
        server = _Server(services, status_details_codec=custom_detail_codec)
        await server.start("127.0.0.1", 0)
        assert server._server is not None
        self.control.url = f"http://127.0.0.1:{server._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for one in self.running:
            await one.machine.end()
        await asyncio.gather(*self._held, *self.control.watches)
        await server.wait_closed()
        server.cut()
        # Transports close in the next step of the loop.
        await asyncio.sleep(0)

    def _service(self, base: type[Any]) -> Any:
        names: frozenset[str] = base.__abstractmethods__
        return type(base.__name__, (base,), {name: self._call(name) for name in names})()

    def _call(self, name: str) -> Callable[[Any, Stream[Any, Any]], Awaitable[None]]:
        handle = getattr(self.control, name, None) or getattr(self._router, name, None)
        reads = name == "TaskExecStdioRead"

        async def call(_: Any, stream: Stream[Any, Any]) -> None:
            request = await stream.recv_message()
            assert request is not None
            self.calls.append(name)
            if handle is None and not reads:
                raise GRPCError(Status.UNIMPLEMENTED, f"{name} is not served by this test server")
            self._check_credentials(name, stream)
            fault = self._fault(name)
            kind = None if fault is None else fault.kind
            if fault is not None and kind == "status":
                raise fault.error()
            if kind == "cut":
                await stream.cancel()
                return
            if kind == "hang":
                await self._taken_away(name)
            if handle is None:
                await self._router.read_output(request, stream)
                return
            if kind == "hold":
                answer = await self._outliving(self._later(name, handle(request)))
            else:
                answer = await handle(request)
            if fault is not None and kind == "mute":
                fault.hit.set()
                await self._taken_away(name)
            if kind == "lost":
                await stream.send_initial_metadata()
                await stream.cancel()
                return
            if kind in ("garbled", "compressed"):
                await stream.send_initial_metadata()
                first = b"\1" if kind == "compressed" else b"\0"
                await stream._stream.send_data(first + _GARBLED)
                return
            await stream.send_message(type(answer)() if kind == "empty" else answer)

        return call

    def _fault(self, name: str) -> Fault | None:
        fault = self.faults.get(name)
        if fault is None or fault.times <= 0:
            return None
        fault.times -= 1
        if fault.kind != "mute":
            fault.hit.set()
        return fault

    async def _taken_away(self, name: str) -> None:
        """Wait until another thread has taken the fault away."""
        while name in self.faults:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def _later(self, name: str, work: Awaitable[T]) -> T:
        await self._taken_away(name)
        return await work

    def _outliving(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Do something even if the client that asked for it goes away."""
        task = asyncio.ensure_future(work)
        self._held.add(task)
        return asyncio.shield(task)

    def _check_credentials(self, name: str, stream: Stream[Any, Any]) -> None:
        assert stream.metadata is not None
        if name.startswith("TaskExec"):
            known = str(stream.metadata.get("authorization")).removeprefix("Bearer ")
            if known not in self.control.tokens:
                raise GRPCError(Status.UNAUTHENTICATED, "unknown bearer token")
            return
        shown = (
            stream.metadata.get("x-modal-token-id"),
            stream.metadata.get("x-modal-token-secret"),
        )
        if shown != (self.token_id, self.token_secret):
            raise GRPCError(Status.UNAUTHENTICATED, "Token validation failed")
        token = stream.metadata.get("x-modal-auth-token")
        if name.endswith("V2") and token not in self.control.tokens:
            raise GRPCError(Status.UNAUTHENTICATED, "unknown auth token")
