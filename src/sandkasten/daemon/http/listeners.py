"""The listening sockets of a daemon and the HTTP servers behind them.

One is on the network (with TLS if a certificate is set), one in the data directory: a client that
can open that file is the operator. Raises InvalidConfiguration before anything is served.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvicorn

from sandkasten.daemon.http.http_protocol import guarded, guarded_websocket
from sandkasten.errors import InvalidConfiguration

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from sandkasten.api.http_limits import HttpLimits
    from sandkasten.daemon.settings.http_settings import HttpSettings

    AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]

_BACKLOG = 1024
# sun_path holds 108 bytes with its NUL.
_MAX_SOCKET_PATH = 107


class _Http(uvicorn.Server):
    """A server that leaves signals to the daemon and sets `ready` when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    def stop_accepting(self) -> None:
        for server in self.servers:
            server.close()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listening:
    """The servers while they serve."""

    def __init__(self, servers: list[_Http], url: str) -> None:
        self.url = url
        self._servers = servers

    def stop_accepting(self) -> None:
        for one in self._servers:
            one.stop_accepting()


@asynccontextmanager
async def listening(
    app: AsgiApp, rules: HttpSettings, guard: HttpLimits
) -> AsyncIterator[Listening]:
    """Serve until the block ends; connections that are still open are then closed."""
    network, local = _network_socket(rules), _local_socket(rules.socket)
    servers = [_http(app, rules, guard, tls=_tls(rules)), _http(app, rules, guard, tls=None)]
    async with _served(servers, [network, local]):
        yield Listening(servers, _url(network, rules))
    with suppress(OSError):
        rules.socket.unlink()


@dataclass(frozen=True, slots=True)
class NetworkAddress:
    """An address that is bound and not served yet."""

    sock: socket.socket
    tls: ssl.SSLContext | None


@contextmanager
def network_address(rules: HttpSettings) -> Iterator[NetworkAddress]:
    """Bind the address until the block ends."""
    tls = _tls(rules)
    with _network_socket(rules) as sock:
        yield NetworkAddress(sock, tls)


@asynccontextmanager
async def listening_on_network(
    app: AsgiApp, address: NetworkAddress, rules: HttpSettings, guard: HttpLimits
) -> AsyncIterator[Listening]:
    """Serve on the network alone, until the block ends."""
    network = address.sock
    servers = [_http(app, rules, guard, tls=address.tls)]
    async with _served(servers, [network]):
        yield Listening(servers, _url(network, rules))


@asynccontextmanager
async def _served(servers: list[_Http], sockets: list[socket.socket]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        for one, sock in zip(servers, sockets, strict=True):
            group.create_task(one.serve(sockets=[sock]))
        for one in servers:
            await one.ready.wait()
        try:
            yield
        finally:
            for one in servers:
                one.should_exit = True


def _url(network: socket.socket, rules: HttpSettings) -> str:
    address = network.getsockname()
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    scheme = "http" if rules.tls_cert is None else "https"
    return f"{scheme}://{host}:{address[1]}"


def _http(
    app: AsgiApp, rules: HttpSettings, guard: HttpLimits, *, tls: ssl.SSLContext | None
) -> _Http:
    config = uvicorn.Config(
        app,
        http=guarded(guard),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws=guarded_websocket(guard),
        # A frame of a terminal or of a proxied page; larger messages use several frames.
        ws_max_size=16 << 20,
        # 16 kB can expand to 16 MB, on the event loop.
        ws_per_message_deflate=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(rules.keep_alive_s),
        # Responses were waited for before; only streams are left by then.
        timeout_graceful_shutdown=1,
        backlog=_BACKLOG,
    )
    config.load()
    config.ssl = tls
    return _Http(config)


def _network_socket(rules: HttpSettings) -> socket.socket:
    try:
        found = socket.getaddrinfo(
            rules.host, rules.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.listen(_BACKLOG)
        except BaseException:
            sock.close()
            raise
    except OSError as exc:
        raise InvalidConfiguration(
            f"cannot listen on {rules.host}:{rules.port}: {exc.strerror or exc}",
            hint="another program may use the port; choose another with --listen",
            setting="listen",
        ) from exc
    return sock


def _local_socket(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        raise InvalidConfiguration(
            f"the path of the daemon's socket is too long: {path}",
            hint="set socket to a shorter path, in a directory that only you can enter",
            setting="socket",
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # This process holds the lock of the data directory: the file is a dead daemon's.
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise InvalidConfiguration(
                    f"{path} exists and is not a socket",
                    hint="set socket to another path, or remove the file",
                    setting="socket",
                )
            path.unlink()
        before = os.umask(0o177)
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
        sock.listen(_BACKLOG)
    except OSError as exc:
        sock.close()
        raise InvalidConfiguration(
            f"cannot listen on {path}: {exc.strerror}",
            hint="check owner and mode of the directory",
            setting="socket",
        ) from exc
    return sock


def _tls(rules: HttpSettings) -> ssl.SSLContext | None:
    if rules.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(rules.tls_cert, rules.tls_key)
    except (OSError, ssl.SSLError) as exc:
        reason: Any = getattr(exc, "strerror", None) or exc
        raise InvalidConfiguration(
            f"the certificate {rules.tls_cert} and its key cannot be used: {reason}",
            hint="use PEM files, the chain in tls.cert, readable by the daemon's user",
            setting="tls.cert",
        ) from exc
    return context
