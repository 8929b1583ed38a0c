"""Real registries on loopback: Debian's docker-registry, and a front that misbehaves.

`docker_registry` runs the program itself: plain, with TLS, with htpasswd, with tokens signed by a
certificate. `Front` forwards requests to one and breaks them as a test says. `push` uploads an
image as any tool does.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.client
import io
import json
import socket
import ssl
import subprocess
import tarfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from sandkasten_runtime.images.registry import manifests
from sandkasten_runtime.images.registry.image_reference import this_platform
from tests.loopback_port import free_port
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

HERE = this_platform().architecture
USER, PASSWORD = "ada", "sesame"
# bcrypt of PASSWORD, as htpasswd -B writes it.
HTPASSWD = f"{USER}:$2b$05$abcdefghijklmnopqrstuuKcS.CYWVYVaLiiCKrrc0A5s3mGesJ9O\n"


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def layer(files: Mapping[str, bytes]) -> bytes:
    """A plain tar with these files, the same for the same content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o644
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class Made:
    """An image as bytes: blobs by digest, and its manifest."""

    manifest: bytes
    media_type: str
    blobs: Mapping[str, bytes] = field(repr=False)
    diff_ids: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        return sha256(self.manifest)

    @property
    def layers(self) -> list[str]:
        return [one["digest"] for one in json.loads(self.manifest)["layers"]]


def image(
    *layers: bytes,
    architecture: str = "amd64",
    variant: str = "",
    docker: bool = False,
    env: tuple[str, ...] = ("A=1",),
) -> Made:
    packed = [gzip.compress(one, mtime=0) for one in layers]
    diff_ids = tuple(sha256(one) for one in layers)
    config = json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            **({"variant": variant} if variant else {}),
            "config": {"Env": list(env), "WorkingDir": "/srv"},
            "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
        }
    ).encode()
    kinds = (
        (
            manifests.DOCKER_MANIFEST,
            "application/vnd.docker.container.image.v1+json",
            "application/vnd.docker.image.rootfs.diff.tar.gzip",
        )
        if docker
        else (
            manifests.OCI_MANIFEST,
            "application/vnd.oci.image.config.v1+json",
            "application/vnd.oci.image.layer.v1.tar+gzip",
        )
    )
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": kinds[0],
            "config": {"mediaType": kinds[1], "digest": sha256(config), "size": len(config)},
            "layers": [
                {"mediaType": kinds[2], "digest": sha256(one), "size": len(one)} for one in packed
            ],
        }
    ).encode()
    blobs = {sha256(one): one for one in (config, *packed)}
    return Made(manifest, kinds[0], blobs, diff_ids)


def index(images: Mapping[str, Made], *, docker: bool = False) -> tuple[bytes, str]:
    """A list of images by platform (`linux/arm64/v8`), and its media type."""
    kind = manifests.DOCKER_LIST if docker else manifests.OCI_INDEX
    entries = []
    for platform, made in images.items():
        os, architecture, *variant = platform.split("/")
        entries.append(
            {
                "mediaType": made.media_type,
                "digest": made.digest,
                "size": len(made.manifest),
                "platform": {
                    "os": os,
                    "architecture": architecture,
                    **({"variant": variant[0]} if variant else {}),
                },
            }
        )
    return json.dumps({"schemaVersion": 2, "mediaType": kind, "manifests": entries}).encode(), kind


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


def send(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    ca_file: str | None = None,
) -> Answer:
    """Send one request as a tool other than ours does."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=ca_file)
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, context=context)
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port)
    try:
        target = parts._replace(scheme="", netloc="").geturl()
        connection.request(method, target, body=body, headers=dict(headers or {}))
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.headers), answer.read())
    finally:
        connection.close()


def push(
    base: str,
    repository: str,
    tag: str,
    made: Made,
    *,
    headers: Mapping[str, str] | None = None,
    ca_file: str | None = None,
) -> None:
    for digest, blob in made.blobs.items():
        begun = send(
            "POST", f"{base}/v2/{repository}/blobs/uploads/", headers=headers, ca_file=ca_file
        )
        assert begun.status == 202, begun.body
        where = begun.headers["Location"]
        where += f"{'&' if '?' in where else '?'}digest={digest}"
        kind = {"Content-Type": "application/octet-stream"}
        done = send("PUT", where, body=blob, headers={**kind, **(headers or {})}, ca_file=ca_file)
        assert done.status == 201, done.body
    put_manifest(
        base, repository, tag, made.manifest, made.media_type, headers=headers, ca_file=ca_file
    )


def put_manifest(
    base: str,
    repository: str,
    tag: str,
    data: bytes,
    media_type: str,
    *,
    headers: Mapping[str, str] | None = None,
    ca_file: str | None = None,
) -> None:
    answer = send(
        "PUT",
        f"{base}/v2/{repository}/manifests/{tag}",
        body=data,
        headers={"Content-Type": media_type, **(headers or {})},
        ca_file=ca_file,
    )
    assert answer.status == 201, answer.body


@dataclass(frozen=True, slots=True)
class Running:
    """A running registry. `host` is the part before the repository in a name."""

    host: str
    base: str


@contextmanager
def docker_registry(
    folder: Path,
    *,
    tls: tuple[Path, Path] | None = None,
    auth: Mapping[str, Any] | None = None,
) -> Iterator[Running]:
    """Run Debian's docker-registry until the block ends. Its settings are JSON, which is YAML."""
    port = free_port()
    http_part: dict[str, Any] = {"addr": f"127.0.0.1:{port}"}
    if tls is not None:
        http_part["tls"] = {"certificate": str(tls[0]), "key": str(tls[1])}
    settings = {
        "version": "0.1",
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "blobs")}},
        "http": http_part,
        **({"auth": auth} if auth else {}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "registry.json"
    file.write_text(json.dumps(settings))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(file)], stdout=log, stderr=log, cwd=folder
        )
    try:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < until, (folder / "log").read_text()
                time.sleep(0.02)
        yield Running(f"localhost:{port}", f"http{'s' if tls else ''}://localhost:{port}")
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def certificate(folder: Path, name: str = "localhost") -> tuple[Path, Path]:
    """A self-signed certificate and its key, made by openssl."""
    folder.mkdir(parents=True, exist_ok=True)
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return cert, key


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Ignore clients that disconnect, which some tests do on purpose."""

    server = Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def signed_token(cert: Path, key: Path, claims: Mapping[str, Any]) -> str:
    """Return a JWT that docker-registry accepts: RS256, with the certificate in its header."""
    der = base64.b64encode(
        base64.b64decode("".join(cert.read_text().strip().splitlines()[1:-1]))
    ).decode()

    def part(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()

    head = {"typ": "JWT", "alg": "RS256", "x5c": [der]}
    body = ".".join(part(json.dumps(one).encode()) for one in (head, claims))
    signature = subprocess.run(
        ["openssl", "dgst", "-sha256", "-sign", str(key)],
        input=body.encode(),
        check=True,
        capture_output=True,
        timeout=60,
    ).stdout
    return f"{body}.{part(signature)}"


@dataclass(slots=True)
class TokenServer:
    """Issues tokens to USER for anything, and anonymously for `public/…` pulls."""

    realm: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Scope and Authorization of every request."""


@contextmanager
def token_server(cert: Path, key: Path) -> Iterator[TokenServer]:
    said = TokenServer()
    good = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            scope = query.get("scope", [""])[0]
            authorization = self.headers.get("Authorization")
            said.asked.append((scope, authorization))
            if authorization is not None and authorization != good:
                self._answer(401, {"errors": [{"code": "UNAUTHORIZED"}]})
                return
            kind, _, rest = scope.partition(":")
            name, _, actions = rest.rpartition(":")
            allowed = authorization == good or (name.startswith("public/") and actions == "pull")
            access = [{"type": kind, "name": name, "actions": actions.split(",")}]
            now = int(time.time())
            token = signed_token(
                cert,
                key,
                {
                    "iss": "tests",
                    "sub": USER,
                    "aud": query.get("service", [""])[0],
                    "exp": now + 300,
                    "nbf": now - 10,
                    "iat": now,
                    "jti": "1",
                    "access": access if allowed and scope else [],
                },
            )
            self._answer(200, {"token": token, "expires_in": 300})

        def _answer(self, status: int, tree: Any) -> None:
            data = json.dumps(tree).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with served(Handler) as port:
        said.realm = f"http://localhost:{port}/token"
        yield said


class Asked:
    """One request at the front, and what a rule can do with it."""

    def __init__(self, handler: BaseHTTPRequestHandler, upstream: Running) -> None:
        self.path = handler.path
        self.headers = dict(handler.headers.items())
        self.body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        self._handler = handler
        self._upstream = upstream

    def answer(self, status: int, headers: Mapping[str, str | None], body: bytes = b"") -> None:
        """Send an answer; a header that is None is not sent."""
        self._handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            if value is not None:
                self._handler.send_header(name, value)
        self._handler.end_headers()
        self._handler.wfile.write(body)

    def pass_on(self, *, at_most: int | None = None, ranges: bool = True) -> None:
        """Forward to the registry; with `at_most` the connection breaks after that many bytes."""
        headers = {n: v for n, v in self.headers.items() if ranges or n.lower() != "range"}
        connection = http.client.HTTPConnection(self._upstream.host, timeout=PATIENCE_S)
        connection.request("GET", self.path, headers=headers)
        got = connection.getresponse()
        body = got.read()
        connection.close()
        self._handler.send_response(got.status)
        for name, value in got.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "date"):
                self._handler.send_header(name, value)
        self._handler.end_headers()
        self._handler.wfile.write(body if at_most is None else body[:at_most])
        if at_most is not None:
            self._handler.close_connection = True


Rule = "Callable[[Asked], None]"


@dataclass(slots=True)
class Front:
    """A proxy before a registry. `rule` gets every request; by default it is forwarded."""

    host: str
    seen: list[Asked] = field(default_factory=list)
    rule: Callable[[Asked], None] = Asked.pass_on

    def paths(self, part: str) -> list[str]:
        return [one.path for one in self.seen if part in one.path]


@contextmanager
def front(upstream: Running) -> Iterator[Front]:
    kept = Front("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = Asked(self, upstream)
            kept.seen.append(asked)
            kept.rule(asked)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with served(Handler) as port:
        kept.host = f"localhost:{port}"
        yield kept
