"""The few calls that we make of a Kubernetes API server, over aiohttp.

A refusal of the server is `ApiRefused`; a server that cannot be reached, or that fails itself,
raises BackendUnavailable. What the server sends is bounded. Decision 27 says why there is no
library.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import socket
from copy import copy
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp

from sandkasten.errors import BackendUnavailable
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.addresses import without_addresses
from sandkasten.model.spelling import one_line
from sandkasten.outgoing_http import new_http_session, read_whole

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence

    from sandkasten_kubernetes.api.cluster_access import ClusterAccess

T = TypeVar("T")

# One of our Pods is 15 KB with its status, 7 KB of which is metadata.
_MOST_BYTES: Final = 64 << 20
_MOST_LINE: Final = 4 << 20
_PAGE: Final = 500
# The server leaves spec, status and data out. The second form is for a server that cannot.
_METADATA_ONLY: Final = (
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
)
_SERVER_FAILS: Final = 500
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _CONFLICT, _GONE = 401, 403, 404, 409, 410
_TOO_LARGE, _MANY = 413, 429
_TOO_LARGE_WORDS: Final = ("request is too large", "message larger than max")
_PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
# The channels of a command in a container.
_OUTPUT, _ERRORS, _END = 1, 2, 3
_TOLD_BYTES: Final = 400
# The API server and the kubelet take a message whole into memory.
_MESSAGE_BYTES: Final = 32 * 1024
_WATCH_S: Final = 60
# The server ends a watch by itself. One that does not is of a server that is gone without a word.
_SILENT_S: Final = _WATCH_S + 15.0
_CONNECTIONS: Final = 100
_MERGE_PATCH: Final = "application/merge-patch+json"
# Kinds that are not of the core group: group and version.
_GROUPS: Final = {"sandboxes": ("agents.x-k8s.io", "v1beta1")}


class ApiRefused(Exception):
    """The API server answered, and refused. Stays within the backend."""

    def __init__(self, status: int, reason: str, message: str, namespace: str = "") -> None:
        """`namespace` is empty if only one is used."""
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.namespace = namespace

    @property
    def not_there(self) -> bool:
        return self.status == _NOT_FOUND

    @property
    def exists(self) -> bool:
        return self.status == _CONFLICT and self.reason == "AlreadyExists"

    @property
    def over_quota(self) -> bool:
        return self.status == _FORBIDDEN and "exceeded quota" in self.message

    @property
    def outside_limit_range(self) -> bool:
        """Whether a LimitRange of the namespace forbids the size of what was asked for."""
        phrases = (" usage per ", " max limit to request ratio per ")
        return self.status == _FORBIDDEN and any(phrase in self.message for phrase in phrases)

    @property
    def too_old(self) -> bool:
        """Whether a watch must start again from a fresh state."""
        return self.status == _GONE


@dataclass(frozen=True, slots=True)
class _Opened:
    access: ClusterAccess
    requests: aiohttp.ClientSession
    lasting: aiohttp.ClientSession
    """For watches and streams: they stay open, and must not take the connections of requests."""


class _Connections:
    """The connections to one API server, opened at the first request."""

    def __init__(self, open_access: Callable[[], ClusterAccess]) -> None:
        self._open_access = open_access
        self._open: _Opened | None = None
        self._opening = asyncio.Lock()

    async def opened(self) -> _Opened:
        if self._open is not None:
            return self._open
        async with self._opening:
            if self._open is None:
                access = await asyncio.to_thread(self._open_access)
                context = await asyncio.to_thread(access.context)
                self._open = _Opened(access, _session(context, _CONNECTIONS), _session(context, 0))
            return self._open

    async def aclose(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            await opened.requests.close()
            await opened.lasting.close()


class ClusterClient:
    """One namespace of one cluster. `open_access` may read files; it is called in a thread, at the
    first request.
    """

    def __init__(
        self, open_access: Callable[[], ClusterAccess], namespace: str, timeout_s: float
    ) -> None:
        self._connections = _Connections(open_access)
        self._namespace = namespace
        self._timeout_s = timeout_s
        self._one_of_several = False

    def within(self, namespace: str) -> ClusterClient:
        """Return a client for one of several namespaces, which uses the same connections. Its
        refusals name the namespace.
        """
        other = copy(self)
        other._namespace, other._one_of_several = namespace, True
        return other

    async def namespace(self) -> str:
        return self._namespace or (await self._opened()).access.namespace

    async def server(self) -> str:
        return (await self._opened()).access.server

    async def addresses(self) -> list[str]:
        """Return the addresses of the API server, each with its port."""
        parts = urlsplit(await self.server())
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            addresses = await asyncio.get_running_loop().getaddrinfo(
                parts.hostname or "", port, type=socket.SOCK_STREAM
            )
        except OSError as exc:
            raise _away(parts.netloc, exc) from exc
        hosts = sorted({str(address[4][0]) for address in addresses})
        return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]

    async def version(self) -> Mapping[str, Any]:
        return await self._call("GET", "/version")

    async def serves(self, kind: str) -> bool:
        """Ask whether the cluster has objects of a kind that is not of the core group."""
        try:
            resources = await self._call("GET", f"/apis/{'/'.join(_GROUPS[kind])}")
        except ApiRefused as exc:
            if exc.not_there:
                return False
            raise
        return any(resource.get("name") == kind for resource in resources.get("resources") or ())

    async def may(self, verb: str, resource: str, subresource: str = "") -> bool:
        """Ask whether our credentials allow this in the namespace."""
        attributes = {
            "namespace": await self.namespace(),
            "verb": verb,
            "group": _GROUPS.get(resource, ("",))[0],
            "resource": resource,
            "subresource": subresource,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        review = await self._call("POST", path, body=body)
        return (review.get("status") or {}).get("allowed") is True

    async def create(self, kind: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Create an object. A field that the cluster does not know is refused, not left out."""
        strict = {"fieldValidation": "Strict"}
        return await self._call("POST", await self._path(kind), body=body, query=strict)

    async def change(self, kind: str, name: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Set the given fields of an object, and leave the others as they are."""
        path = await self._path(kind, name)
        return await self._call("PATCH", path, body=body, form=_MERGE_PATCH)

    async def get(self, kind: str, name: str) -> Mapping[str, Any]:
        return await self._call("GET", await self._path(kind, name))

    async def find(self, kind: str, name: str) -> Mapping[str, Any] | None:
        """Return an object; None if it is not there."""
        try:
            return await self.get(kind, name)
        except ApiRefused as exc:
            if exc.not_there:
                return None
            raise

    async def delete(
        self, kind: str, name: str, *, uid: str = "", version: str = "", grace_s: int | None = None
    ) -> bool:
        """Ask for the removal. Return False if it is not there, or has another uid or resource
        version than the given one.
        """
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        conditions = {"uid": uid, "resourceVersion": version}
        if uid or version:
            body["preconditions"] = {name: value for name, value in conditions.items() if value}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            await self._call("DELETE", await self._path(kind, name), body=body)
        except ApiRefused as exc:
            if exc.not_there or ((uid or version) and exc.status == _CONFLICT):
                return False
            raise
        return True

    async def list(self, kind: str, selector: str) -> Sequence[Mapping[str, Any]]:
        """Return the metadata of all objects, read in pages."""
        items: list[Mapping[str, Any]] = []
        query = {"labelSelector": selector, "limit": str(_PAGE)}
        while True:
            page = await self._call(
                "GET", await self._path(kind), query=query, accept=_METADATA_ONLY
            )
            items.extend(page.get("items") or ())
            more = str((page.get("metadata") or {}).get("continue") or "")
            if not more:
                return items
            query["continue"] = more

    async def watch(
        self, kind: str, name: str, version: str
    ) -> AsyncGenerator[tuple[str, Mapping[str, Any]], None]:
        """Yield (`ADDED` | `MODIFIED` | `DELETED`, object) after a version, for a while."""
        opened = await self._opened()
        access = opened.access
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={name}",
            "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_S),
        }
        url = access.server + await self._path(kind)
        silent = aiohttp.ClientTimeout(total=None, sock_read=_SILENT_S)
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await opened.lasting.get(
                    url, params=query, headers=await access.headers(), timeout=silent
                )
            async with answer:
                if answer.status >= 400:
                    text = await read_whole(answer, _MOST_BYTES)
                    raise self._refused(answer.status, text, access.server)
                async for line in _lines(answer.content):
                    event = json.loads(line)
                    resource = event.get("object") or {}
                    if event.get("type") == "ERROR":
                        raise self._told(int(resource.get("code") or 0), resource)
                    yield str(event.get("type")), resource
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise _away(access.server, exc) from exc

    async def stream(self, pod: str, container: str, command: Sequence[str]) -> PodStream:
        """Start a command in a container; its standard input and output are the stream."""
        opened = await self._opened()
        access = opened.access
        query = [
            ("container", container),
            *(("command", argument) for argument in command),
            ("stdin", "true"),
            ("stdout", "true"),
            ("stderr", "true"),
        ]
        url = access.server + await self._path("pods", pod) + "/exec"
        try:
            async with asyncio.timeout(self._timeout_s):
                web_socket = await opened.lasting.ws_connect(
                    url,
                    params=query,
                    headers=await access.headers(),
                    protocols=_PROTOCOLS,
                    max_msg_size=_MOST_LINE,
                )
        except aiohttp.WSServerHandshakeError as exc:
            if exc.status < _SERVER_FAILS:
                why = f"exec was refused: {exc.message}"
                raise ApiRefused(exc.status, "", why, self._where) from exc
            raise _away(access.server, exc) from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise _away(access.server, exc) from exc
        return PodStream(web_socket)

    async def logs(self, pod: str, container: str) -> str:
        """Return the last lines that a container wrote."""
        opened = await self._opened()
        access, session = opened.access, opened.requests
        query = {"container": container, "tailLines": "5", "limitBytes": "4096"}
        url = access.server + await self._path("pods", pod) + "/log"
        return await self._asked(
            access, self._text(session, url, query, await access.headers(), access.server)
        )

    async def events(self, name: str) -> Sequence[tuple[str, str]]:
        """Return (reason, message) of what happened to objects of this name, oldest first."""
        query = {"fieldSelector": f"involvedObject.name={name}", "limit": str(_PAGE)}
        events = (await self._call("GET", await self._path("events"), query=query)).get("items")
        ordered = sorted(events or (), key=lambda event: str(event.get("lastTimestamp") or ""))
        return [
            (str(event.get("reason")), one_line(str(event.get("message")))) for event in ordered
        ]

    async def aclose(self) -> None:
        """Close the connections, also those of other clients that share them."""
        await self._connections.aclose()

    async def _text(
        self,
        session: aiohttp.ClientSession,
        url: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        server: str,
    ) -> str:
        async with session.get(url, params=query, headers=headers) as answer:
            body = await read_whole(answer, _MOST_BYTES)
            if answer.status >= 400:
                raise self._refused(answer.status, body, server)
            return body.decode(errors="replace")

    async def _path(self, kind: str, name: str = "") -> str:
        group = _GROUPS.get(kind)
        root = f"/apis/{'/'.join(group)}" if group else "/api/v1"
        path = f"{root}/namespaces/{quote(await self.namespace(), safe='')}/{kind}"
        return f"{path}/{quote(name, safe='')}" if name else path

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        accept: str = "application/json",
        form: str = "application/json",
    ) -> Mapping[str, Any]:
        opened = await self._opened()
        access, session = opened.access, opened.requests
        # Bytes at once could block the event loop, says aiohttp: an environment may be large.
        sent = None if body is None else io.BytesIO(json.dumps(body).encode())

        async def ask() -> Mapping[str, Any]:
            headers = {**await access.headers(), "Accept": accept, "Content-Type": form}
            async with session.request(
                method,
                access.server + path,
                data=sent,
                params=query,
                headers=headers,
                allow_redirects=False,
            ) as answer:
                text = await read_whole(answer, _MOST_BYTES)
                if answer.status >= 300:
                    raise self._refused(answer.status, text, access.server)
                document: Mapping[str, Any] = json.loads(text)
                return document

        return await self._asked(access, ask())

    async def _asked(self, access: ClusterAccess, question: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await question
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise _away(access.server, exc) from exc

    async def _opened(self) -> _Opened:
        return await self._connections.opened()

    def _refused(self, status: int, text: bytes, server: str) -> Exception:
        try:
            failure = json.loads(text)
        except ValueError:
            failure = {}
        return self._told(status, failure if isinstance(failure, dict) else {}, server)

    def _told(self, status: int, failure: Mapping[str, Any], server: str = "") -> Exception:
        return _error(status, failure, server, self._where)

    @property
    def _where(self) -> str:
        return self._namespace if self._one_of_several else ""


class PodStream:
    """Standard input and output of a command in a container. Implements `ports.ByteStream`.

    Each message of the WebSocket begins with the number of its channel: 0 input, 1 output,
    2 errors, 3 the end. Standard error and the reason of an end are kept. Fails only with OSError.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._left = b""
        self._closed = False
        self.told = ""

    async def receive(self, max_bytes: int) -> bytes:
        while not self._left:
            if self._closed:
                return b""
            message = await self._socket.receive()
            if message.type is aiohttp.WSMsgType.BINARY:
                self._take(message.data)
            elif message.type is aiohttp.WSMsgType.ERROR and not self._closed:
                raise ConnectionResetError(str(message.data))
            elif message.type is not aiohttp.WSMsgType.TEXT:
                return b""
        data, self._left = self._left[:max_bytes], self._left[max_bytes:]
        return data

    def _take(self, data: bytes) -> None:
        if not data:
            return
        if data[0] == _OUTPUT:
            self._left = data[1:]
        elif data[0] in (_ERRORS, _END):
            self.told = (self.told + data[1:].decode(errors="replace"))[-_TOLD_BYTES:]

    async def send(self, *parts: bytes | bytearray | memoryview) -> None:
        if self._closed:
            raise BrokenPipeError("the stream is closed")
        try:
            for piece in _pieces(b"".join(parts)):
                await self._socket.send_bytes(b"\0" + piece)
        except (aiohttp.ClientError, RuntimeError) as exc:
            raise BrokenPipeError(str(exc) or "the connection to the API server is gone") from exc

    async def aclose(self) -> None:
        """Close. A pending receive returns b"". Twice is fine."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await self._socket.close()


def _pieces(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), _MESSAGE_BYTES):
        yield data[at : at + _MESSAGE_BYTES]


def _session(context: ssl.SSLContext | None, most: int) -> aiohttp.ClientSession:
    """Return a session with at most so many connections; 0: any number."""
    connector = aiohttp.TCPConnector(ssl=True if context is None else context, limit=most)
    return new_http_session(connector, compressed=True)


async def _lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    rest = bytearray()
    while part := await content.readany():
        rest += part
        *whole, last = rest.split(b"\n")
        for line in whole:
            if line:
                yield bytes(line)
        rest = bytearray(last)
        if len(rest) > _MOST_LINE:
            raise aiohttp.ClientPayloadError("an event of it is too long")


def _error(status: int, failure: Mapping[str, Any], server: str, namespace: str) -> Exception:
    message = one_line(str(failure.get("message") or f"status {status}"))
    if status == _UNAUTHORIZED:
        return BackendUnavailable(
            "the API server of the cluster does not accept our credentials",
            hint="renew the token or the certificate in the kubeconfig",
            backend="kubernetes",
        )
    if status >= _SERVER_FAILS and any(words in message for words in _TOO_LARGE_WORDS):
        # The database of the cluster takes less than the server does.
        return ApiRefused(_TOO_LARGE, "RequestEntityTooLarge", message, namespace)
    if status >= _SERVER_FAILS or status == _MANY:
        return _no_answer(server, "fails", message, "try again; running sandboxes go on without it")
    return ApiRefused(status, str(failure.get("reason") or ""), message, namespace)


def _away(server: str, exc: BaseException) -> BackendUnavailable:
    why = "it did not answer in time" if isinstance(exc, TimeoutError) else one_line(str(exc))
    return _no_answer(
        server,
        "does not answer",
        why or type(exc).__name__,
        "check backends.kubernetes.kubeconfig and the cluster; running sandboxes go on without it",
    )


def _no_answer(server: str, what: str, why: str, hint: str) -> BackendUnavailable:
    """Return an error without the address, which is a note, for the log and `doctor`."""
    error = BackendUnavailable(
        f"the API server of the cluster {what}: {without_addresses(why, [server])}",
        hint=hint,
        backend="kubernetes",
    )
    if server:
        error.add_note(f"it is at {server}: {why}")
    return error
