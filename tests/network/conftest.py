"""Servers on this machine's loopback, and sandboxes that may reach some of them by name."""

from __future__ import annotations

import http.server
import socketserver
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten import Sandbox
from tests.engines import lent, stock
from tests.network.tls_api import Api, make_certificates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", f"http://evil.test:{self.server.server_port}/")  # type: ignore[attr-defined]
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = f"hello {self.headers['Host']}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class _Echo(socketserver.BaseRequestHandler):
    """A protocol in which the server speaks first."""

    def handle(self) -> None:
        self.request.sendall(b"READY\n")
        while data := self.request.recv(65536):
            self.request.sendall(data)


class _Threaded(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextmanager
def served(server: socketserver.BaseServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        address: Any = server.server_address
        yield address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def web() -> Iterator[int]:
    """Return the port of an HTTP server."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    with served(server) as port:
        yield port


@pytest.fixture(scope="module")
def echo() -> Iterator[int]:
    """Return the port of a server that greets and then repeats what it gets."""
    with served(_Threaded(("127.0.0.1", 0), _Echo)) as port:
        yield port


class Recorder(_Threaded):
    """Keeps what each connection sent first, and answers like a web server."""

    def __init__(self, address: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__((address, port), _Recorded)
        self.received: list[bytes] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Recorded(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        if data := self.request.recv(65536):
            self.server.received.append(data)  # type: ignore[attr-defined]
            self.request.sendall(b"HTTP/1.0 200 OK\r\n\r\n")


@pytest.fixture
def raw() -> Iterator[Recorder]:
    """Return a server that records what reaches it."""
    server = Recorder()
    with served(server):
        yield server


HOSTS = "good.test=127.0.0.1,evil.test=127.0.0.1,far.test=127.0.0.2,mixed.test=10.9.8.7+127.0.0.1"


@pytest.fixture(scope="module")
def docker_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one data directory for a module's sandboxes on Docker: the engine is tried once.

    Another module may set other variables, which this process reads once for each directory.
    """
    return tmp_path_factory.mktemp("docker") / "data"


@pytest.fixture
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the data directory of a test; with `backend` docker, an engine is set up for it."""
    params = getattr(getattr(request.node, "callspec", None), "params", {})
    if params.get("backend") != "docker":
        return tmp_path / "data"
    monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    monkeypatch.setenv("DOCKER_HOST", lent.engine("local", stock.PROGRAMS).host)
    monkeypatch.setenv("SANDKASTEN_DOCKER_WORKSPACE_MODE", "volume")
    monkeypatch.setenv("SANDKASTEN_DEFAULT_IMAGE", stock.reference(stock.PROGRAMS))
    found: Path = request.getfixturevalue("docker_data")
    return found


@pytest.fixture
def boxed(data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Sandbox]]:
    """Return what creates sandboxes; only 127.0.0.1 is open besides public addresses.

    Without a warm pool, whose sandbox would outlive the data directory.
    """
    monkeypatch.setenv("SANDKASTEN_POOL_ONESHOT_SPARES", "0")
    monkeypatch.setenv("SANDKASTEN_NETWORK_REACHABLE", "127.0.0.1/32")
    monkeypatch.setenv("SANDKASTEN_NETWORK_HOSTS", HOSTS)
    monkeypatch.setenv("SANDKASTEN_NETWORK_SERVERS", "127.0.0.1:1")
    made: list[Sandbox] = []

    def create(**options: Any) -> Sandbox:
        made.append(Sandbox(data_dir=str(data), **options))
        return made[-1]

    yield create
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a file with an authority, and one with the chain and key of a server."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def api(
    certificates: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Api]:
    """Return an API over TLS whose authority sandboxes accept."""
    monkeypatch.setenv("SANDKASTEN_NETWORK_CA_FILES", str(certificates[0]))
    server = Api(certificates[1])
    server.files = tmp_path
    with served(server):
        yield server
