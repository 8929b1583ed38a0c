"""The listening sockets of a daemon and the HTTP servers behind them.

One is on the network (with TLS if a certificate is set), one in the data directory: a client that
can open that file is the operator. A third one serves previews over TLS, if its address is set.
Raises InvalidConfiguration before anything is served.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import uvicorn

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten_server.daemon.http.certificates import preview_context, tls_context
from sandkasten_server.daemon.http.http_protocol import guarded
from sandkasten_server.daemon.http.websocket_protocol import guarded_websocket

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from sandkasten.settings.setting_parsers import Address
    from sandkasten_server.api.http_limits import HttpLimits
    from sandkasten_server.api.previews.preview_rules import PreviewRules
    from sandkasten_server.daemon.settings.http_settings import HttpSettings

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
        for server in self._servers:
            server.stop_accepting()


@dataclass(frozen=True, slots=True)
class PreviewListener:
    """The application that serves only previews, and where."""

    app: AsgiApp
    settings: PreviewRules


@asynccontextmanager
async def listening(
    app: AsgiApp, rules: HttpSettings, guard: HttpLimits, previews: PreviewListener | None = None
) -> AsyncIterator[Listening]:
    """Serve until the block ends; connections that are still open are then closed."""
    sockets = [_network_socket(rules.listen, "listen"), _local_socket(rules.socket)]
    servers = [_http(app, rules, guard, tls=_tls(rules)), _http(app, rules, guard, tls=None)]
    if previews is not None and previews.settings.listen is not None:
        tls = await asyncio.to_thread(preview_context, previews.settings)
        servers.append(_http(previews.app, rules, guard, tls=tls))
        sockets.append(_network_socket(previews.settings.listen, "previews.listen"))
    async with _served(servers, sockets):
        yield Listening(servers, _url(sockets[0], rules))
    with suppress(OSError):
        rules.socket.unlink()


def below_prefix(app: AsgiApp, prefix: str) -> AsgiApp:
    """Return an application whose paths are those of `app` below a prefix."""

    async def below(scope: Any, receive: Any, send: Any) -> None:
        if "path" in scope:
            scope = {**scope, "path": prefix + scope["path"]}
        await app(scope, receive, send)

    return below


@dataclass(frozen=True, slots=True)
class NetworkAddress:
    """An address that is bound and not served yet."""

    sock: socket.socket
    tls: ssl.SSLContext | None


@contextmanager
def network_address(rules: HttpSettings) -> Iterator[NetworkAddress]:
    """Bind the address until the block ends."""
    tls = _tls(rules)
    with _network_socket(rules.listen, "listen") as sock:
        yield NetworkAddress(sock, tls)


@asynccontextmanager
async def listening_on_network(
    app: AsgiApp, address: NetworkAddress, rules: HttpSettings, guard: HttpLimits
) -> AsyncIterator[Listening]:
    """Serve only on the network, until the block ends."""
    network = address.sock
    servers = [_http(app, rules, guard, tls=address.tls)]
    async with _served(servers, [network]):
        yield Listening(servers, _url(network, rules))


@asynccontextmanager
async def _served(servers: list[_Http], sockets: list[socket.socket]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        for server, sock in zip(servers, sockets, strict=True):
            group.create_task(server.serve(sockets=[sock]))
        for server in servers:
            await server.ready.wait()
        try:
            yield
        finally:
            for server in servers:
                server.should_exit = True


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


def _network_socket(listen: Address, setting: str) -> socket.socket:
    try:
        addresses = socket.getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = addresses[0]
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
            f"cannot listen on {listen.host}:{listen.port}: {exc.strerror or exc}",
            hint="another program may use the port; choose another with "
            + ("--listen" if setting == "listen" else setting),
            setting=setting,
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
    return tls_context(rules.tls_cert, rules.tls_key, "tls.cert")
