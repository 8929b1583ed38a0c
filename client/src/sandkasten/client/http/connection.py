"""The HTTP connection to one daemon: sends requests, retries where that is safe, maps errors.

Knows HTTP and nothing about sandboxes. A request is retried only if it cannot have been processed
(nothing listened, or the daemon was busy) or if it is idempotent; the number of attempts is
limited. Every failure is a class of `errors`.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, unquote, urlsplit
from urllib.request import getproxies

import aiohttp

from sandkasten.client.http.error_responses import error_of
from sandkasten.client.http.event_parser import MAX_EVENT_BYTES
from sandkasten.errors import (
    BackendUnavailable,
    InvalidRequest,
    ProtocolViolation,
    SandkastenError,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.proxies import proxy_arguments
from sandkasten.model.retries import Backoff, retry_after_s
from sandkasten.outgoing_http import UnexpectedRedirect, new_http_session, read_start, read_whole

# The package first: a thread that imports a part of it and one that imports the package would wait
# for each other.
from sandkasten.ports import spans

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterable,
        AsyncIterator,
        Awaitable,
        Callable,
        Mapping,
    )

T = TypeVar("T")

TRIES: Final = 5
# For a daemon that answered before: it is being restarted, which takes longer.
PATIENT_TRIES: Final = 8
FIRST_PAUSE_S: Final = 0.1
# Log that the client waits once a known daemon is unreachable for this long.
QUIET_S: Final = 2.0
# What a server may make us wait by Retry-After; the caller decides about more than that.
MOST_PAUSE_S: Final = 10.0
_BACKOFF: Final = Backoff(FIRST_PAUSE_S, MOST_PAUSE_S)
ANSWER_S: Final = 60.0
CONNECT_S: Final = 10.0
# A terminal may have to wait until its sandbox goes on.
_HANDSHAKE_S: Final = 300.0
# Below what servers keep an idle connection for, so that none is used while it is being closed.
_KEEP_ALIVE_S: Final = 4.0
# A sandbox of the warm pool takes milliseconds; one that is made takes tens of them.
_LATE_ANSWER_S: Final = 0.25
_HINT: Final = "say http://host:8080, https://host or unix:///path/daemon.sock"
_AGENT: Final = {"User-Agent": "sandkasten-python"}
_MAX_ERROR_BYTES: Final = 1 << 20
# An answer may hold all that the last event of a stream may hold.
_MAX_ANSWER_BYTES: Final = MAX_EVENT_BYTES
# A daemon sends at most one frame of a runner in a message.
_MAX_MESSAGE_BYTES: Final = 16 << 20
_AT_ONCE: Final = 1 << 18
_PIECE: Final = 1 << 20
_log: Final = logging.getLogger("sandkasten.client")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request. `repeatable`: doing it twice is the same as doing it once."""

    method: str
    path: str
    body: object = None
    query: Mapping[str, str] = field(default_factory=dict)
    data: AsyncIterable[bytes] | bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = False
    answer_s: float | None = ANSWER_S
    """None: for as long as it takes."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a daemon: `http://host:port`, `https://…` or `unix:///path/daemon.sock`."""

    base: str
    """What every path is added to; never ends with a slash."""
    socket: str | None = None
    """The Unix socket to go through instead of the network."""
    shown: str = ""


class Connection:
    """Belongs to one event loop. Holds sockets open until `aclose`."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        tenant: str | None = None,
        *,
        discovered: bool = False,
    ) -> None:
        """`discovered`: the caller did not name this daemon, so errors name it."""
        self.address: Address = address_of(url)
        self._discovered = discovered
        self._proxy = proxy_arguments(self.address.base, getproxies())
        self._credentials: dict[str, str] = {}
        if api_key is not None:
            self._credentials["Authorization"] = f"Bearer {api_key}"
        if tenant is not None:
            self._credentials["X-Sandkasten-Tenant"] = tenant
        self._http: aiohttp.ClientSession | None = None
        self._sockets: aiohttp.ClientSession | None = None
        self._reached = False
        self._lost_at: float | None = None
        self._told = False

    async def ask(self, order: HttpRequest) -> Any:
        """Return the JSON answer."""
        return (await self.ask_page(order))[0]

    async def ask_page(self, order: HttpRequest) -> tuple[Any, Mapping[str, str]]:
        """Return the JSON answer and its headers."""
        raw, headers = await self._fetch(order)
        try:
            return json.loads(raw), headers
        except ValueError:
            raise ProtocolViolation(
                f"{order.method} {order.path} did not return JSON",
                hint=f"check that {self.address.shown} is a Sandkasten daemon",
            ) from None

    async def _fetch(self, order: HttpRequest) -> tuple[bytes, Mapping[str, str]]:
        """Return the whole body of the answer and its headers."""

        async def whole(answer: aiohttp.ClientResponse) -> tuple[bytes, Mapping[str, str]]:
            too_long = ProtocolViolation(
                f"the answer to {order.method} {order.path} has more than "
                f"{_MAX_ANSWER_BYTES >> 20} MiB"
            )
            return await read_whole(answer, _MAX_ANSWER_BYTES, too_long), answer.headers

        async with self._accepted(order, whole) as reply:
            return reply

    @asynccontextmanager
    async def stream(self, order: HttpRequest) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Return the answer while it arrives; its reader sees aiohttp's errors (see `reading`)."""

        async def unread(answer: aiohttp.ClientResponse) -> aiohttp.ClientResponse:
            return answer

        async with self._accepted(order, unread) as answer:
            yield answer

    @asynccontextmanager
    async def _accepted(
        self, order: HttpRequest, take: Callable[[aiohttp.ClientResponse], Awaitable[T]]
    ) -> AsyncGenerator[T]:
        """Yield what `take` returns of the first answer that is not an error.

        Until then, failures are retried, also those of `take`.
        """
        turn = 0
        while True:
            turn += 1
            began = False
            try:
                async with self._request(order) as answer:
                    if answer.status < 300:
                        result = await take(answer)
                        began = True
                        yield result
                        return
                    raw = await _refusal_body(answer)
                    failure = self._error(answer.status, raw)
                    pause_s = self._after(order, answer, failure, turn)
            except SandkastenError:
                raise
            except (aiohttp.ClientError, TimeoutError, OSError) as exc:
                if began:
                    raise
                failure = self._trouble(order, exc)
                pause_s = self._again(order, exc, turn)
            if pause_s is None:
                raise failure
            await asyncio.sleep(pause_s)

    async def websocket(
        self, path: str, query: Mapping[str, str]
    ) -> aiohttp.ClientWebSocketResponse:
        order = HttpRequest("GET", path, answer_s=_HANDSHAKE_S)
        turn = 0
        pause_s: float | None
        while True:
            turn += 1
            try:
                socket = await self._socket_session().ws_connect(
                    self.address.base + path,
                    params=query,
                    headers=self._credentials,
                    max_msg_size=_MAX_MESSAGE_BYTES,
                    heartbeat=20.0,
                    **self._proxy,
                )
                self.answered()
                return socket
            except UnexpectedRedirect as exc:
                raise error_of(exc.status, b"") from None
            except aiohttp.WSServerHandshakeError as exc:
                # The library drops the body of a refusal; asked plainly, the daemon says it again.
                refusal = await self._refusal(path, query, exc)
                if refusal is not None:
                    raise refusal from None
                if turn >= TRIES:
                    raise error_of(exc.status, b"") from None
                pause_s = 0.0
            except (aiohttp.ClientError, TimeoutError, OSError) as exc:
                pause_s = self._again(order, exc, turn)
                if pause_s is None:
                    raise self._trouble(order, exc) from exc
            await asyncio.sleep(pause_s)

    async def aclose(self) -> None:
        sessions = self._http, self._sockets
        self._http = self._sockets = None
        for session in sessions:
            if session is not None:
                await session.close()

    # ---- below

    @asynccontextmanager
    async def _request(self, order: HttpRequest) -> AsyncGenerator[aiohttp.ClientResponse]:
        headers = {**self._credentials, **order.headers}
        traceparent = spans.current_traceparent()
        if traceparent is not None:
            headers["traceparent"] = traceparent
        data: Any = order.data
        if order.body is not None:
            data = _json(order.body)
            headers["Content-Type"] = "application/json"
        source = None
        if isinstance(data, bytes):
            if len(data) > _AT_ONCE:
                # In pieces, so that the loop can do other things between them.
                data = io.BytesIO(data)
        elif data is not None:
            source = _Source(data)
            data = source.pieces()
        try:
            async with self._request_session().request(
                order.method,
                self.address.base + order.path,
                params=dict(order.query),
                data=data,
                headers=headers,
                # A daemon never sends one, and it could carry the key elsewhere.
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=order.answer_s, sock_connect=CONNECT_S),
                **self._proxy,
            ) as answer:
                self.answered()
                yield answer
        except aiohttp.ClientError:
            # What the caller's own stream raised is the caller's, not the connection's.
            if source is not None and source.failure is not None:
                raise source.failure from None
            raise

    def _request_session(self) -> aiohttp.ClientSession:
        if self._http is None:
            # Each request has `allow_redirects=False`, and the check would cost it 30 µs.
            self._http = new_http_session(
                self._connector(), headers=_AGENT, redirects_are_errors=False
            )
        return self._http

    def _socket_session(self) -> aiohttp.ClientSession:
        if self._sockets is None:
            timeout = aiohttp.ClientTimeout(total=_HANDSHAKE_S, sock_connect=CONNECT_S)
            self._sockets = new_http_session(self._connector(), timeout=timeout, headers=_AGENT)
        return self._sockets

    def _connector(self) -> aiohttp.BaseConnector:
        # No bound on connections: a waiting command must never hold up another's kill.
        if self.address.socket is None:
            return aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S)
        return aiohttp.UnixConnector(self.address.socket, limit=0, keepalive_timeout=_KEEP_ALIVE_S)

    def _after(
        self,
        order: HttpRequest,
        answer: aiohttp.ClientResponse,
        failure: SandkastenError,
        turn: int,
    ) -> float | None:
        """Return the seconds to wait before the next attempt; None if this is the answer."""
        if turn >= TRIES or not _may_pass(answer.status, failure, order) or _is_spent(order):
            return None
        wanted = retry_after_s(answer.headers, time.time())
        return None if wanted > MOST_PAUSE_S else max(wanted, _BACKOFF.pause_s(turn))

    def _again(self, order: HttpRequest, exc: Exception, turn: int) -> float | None:
        unsent = isinstance(exc, aiohttp.ClientConnectorError)
        hopeless = isinstance(exc, aiohttp.InvalidURL | aiohttp.ClientSSLError | TimeoutError)
        tries = PATIENT_TRIES if self._reached else TRIES
        if turn >= tries or hopeless or not (unsent or order.repeatable) or _is_spent(order):
            return None
        pause_s = _BACKOFF.pause_s(turn)
        self._note_lost(pause_s)
        return pause_s

    def _error(self, status: int, raw: bytes) -> SandkastenError:
        failure = error_of(status, raw)
        if self._discovered:
            failure.details.setdefault("daemon", self.address.shown)
        return failure

    @property
    def reached(self) -> bool:
        """Return whether the daemon has answered before."""
        return self._reached

    def answered(self) -> None:
        """Note that the daemon answers: from now on, wait for it when it is unreachable."""
        if self._told:
            _log.warning("connected to %s again", self.address.shown)
        self._reached, self._lost_at, self._told = True, None, False

    def _note_lost(self, pause_s: float) -> None:
        """Log once that a daemon is unreachable, before the pause that becomes noticeable."""
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at = now
        if self._reached and not self._told and now + pause_s - self._lost_at >= QUIET_S:
            self._told = True
            _log.warning("the connection to %s was lost; retrying", self.address.shown)

    def _trouble(self, order: HttpRequest, exc: Exception) -> SandkastenError:
        if isinstance(exc, aiohttp.ClientSSLError):
            return BackendUnavailable(
                f"the daemon at {self.address.shown} cannot be trusted: {exc}",
                hint="its certificate must be signed by an authority that this machine trusts",
            )
        if isinstance(exc, aiohttp.ClientConnectorError | aiohttp.InvalidURL):
            return self._unreachable(exc)
        what = f"{order.method} {order.path}"
        if isinstance(exc, TimeoutError):
            return BackendUnavailable(
                f"the daemon did not answer {what} within {order.answer_s or CONNECT_S:g} s",
                hint="it may be overloaded; check its log",
            )
        return BackendUnavailable(
            f"the connection was lost before {what} was answered ({type(exc).__name__})",
            hint="the daemon may have been restarted"
            if order.repeatable
            else "it may have been done; check before you retry",
        )

    def _unreachable(self, exc: Exception) -> BackendUnavailable:
        cause = exc.os_error if isinstance(exc, aiohttp.ClientConnectorError) else exc
        if isinstance(cause, PermissionError):
            return BackendUnavailable(
                f"this user may not open {self.address.shown} (Permission denied)",
                hint="run the command as the daemon's user, or name its HTTP address in "
                "SANDKASTEN_URL and a key in SANDKASTEN_API_KEY",
            )
        reason = getattr(cause, "strerror", None) or type(cause).__name__
        return BackendUnavailable(
            f"no daemon answers at {self.address.shown} ({reason})",
            hint="start it with: sandkasten serve; or check SANDKASTEN_URL",
        )

    async def _refusal(
        self, path: str, query: Mapping[str, str], exc: aiohttp.WSServerHandshakeError
    ) -> SandkastenError | None:
        """Return why a handshake was refused; None if it is not refused any more."""
        try:
            async with self._request(
                HttpRequest("GET", path, query=query, headers=_UPGRADE)
            ) as answer:
                if answer.status < 400:
                    return None
                return error_of(answer.status, await _refusal_body(answer))
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass
        return error_of(exc.status, b"")


# The header of a handshake, so that a second look at a refusal takes the same way.
_UPGRADE: Final[Mapping[str, str]] = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "c2FuZGthc3RlbiBzYW5kaw==",
}


async def _refusal_body(answer: aiohttp.ClientResponse) -> bytes:
    # The request itself may take as long as it takes.
    async with asyncio.timeout(CONNECT_S):
        return await read_start(answer, _MAX_ERROR_BYTES)


def _json(body: object) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            "a string of the request is not valid UTF-8",
            hint="pass bytes where bytes are accepted",
        ) from None
    except (TypeError, ValueError) as exc:
        raise InvalidRequest(
            f"the request cannot be sent: {exc}", hint="check its values"
        ) from None


class _Source:
    """A caller's stream that is being sent; remembers its failure."""

    def __init__(self, pieces: AsyncIterable[bytes]) -> None:
        self._pieces = pieces
        self.failure: BaseException | None = None

    async def pieces(self) -> AsyncIterator[bytes]:
        """Iterate over the body; one that ends before its announced length is an error."""
        try:
            async for piece in self._pieces:
                yield piece
        except GeneratorExit:
            raise
        except BaseException as exc:
            self.failure = exc
            raise


def _may_pass(status: int, failure: SandkastenError, order: HttpRequest) -> bool:
    """Return whether the daemon was busy and did nothing."""
    if status == 429:
        # Asked too often; having too much of something does not pass by waiting.
        return failure.details.get("quota") in (None, "rate", "connections")
    return status == 503 and order.repeatable and failure.retryable


def _is_spent(order: HttpRequest) -> bool:
    """Return whether the body is a stream that was started: it cannot be sent again."""
    return order.data is not None and not isinstance(order.data, bytes)


@asynccontextmanager
async def reading(connection: Connection, what: str) -> AsyncGenerator[None]:
    """Map a lost connection to an error while a stream is read."""
    try:
        yield
    except SandkastenError:
        raise
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        raise BackendUnavailable(
            f"the connection to {connection.address.shown} was lost while {what} "
            f"({type(exc).__name__})",
            hint="the daemon may have been restarted; retry",
        ) from exc


async def pieces(
    connection: Connection, answer: aiohttp.ClientResponse, what: str, stall_s: float
) -> AsyncGenerator[bytes]:
    """Iterate over the body; one that ends before its announced length is an error."""
    while True:
        # Not around the yield: what the reader of the pieces raises is not the connection's, and
        # a generator that is left early could not close the context manager.
        async with reading(connection, what), asyncio.timeout(stall_s):
            piece = await answer.content.read(_PIECE)
        if not piece:
            return
        yield piece


async def settle(asking: asyncio.Future[Any]) -> None:
    """End a request whose caller was cancelled; it is done when this returns.

    The daemon may have done the work already, so its answer gets a moment to arrive. After that,
    disconnecting makes the daemon undo what it has begun.
    """
    with suppress(asyncio.CancelledError):
        await asyncio.wait({asking}, timeout=_LATE_ANSWER_S)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


def session_path(sandbox_id: str, verb: str = "") -> str:
    base = f"/v1/sessions/{quote(sandbox_id, safe='')}"
    return f"{base}/{verb}" if verb else base


def address_of(url: str) -> Address:
    """Parse an address; InvalidRequest if it is invalid. A password would end up in logs."""
    try:
        parts = urlsplit(url)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        raise InvalidRequest(
            f"{url[:200]!r} is not a valid daemon URL", hint=_HINT, field="url"
        ) from None
    if parts.username is not None or parts.password is not None:
        raise InvalidRequest(
            "the URL contains a user name or a password",
            hint="give the key as api_key",
            field="url",
        )
    if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
        # The name is only there because HTTP wants one: a listener on a socket is local.
        return Address("http://localhost", socket=unquote(parts.path), shown=url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok:
        raise InvalidRequest(f"{url[:200]!r} is not a valid daemon URL", hint=_HINT, field="url")
    if parts.query or parts.fragment:
        raise InvalidRequest(f"{url[:200]!r} is not a valid daemon URL", hint=_HINT, field="url")
    return Address(f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", shown=url)
