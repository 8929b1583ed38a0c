"""An API over TLS that wants a token, with a certificate of an authority made for the tests."""

from __future__ import annotations

import base64
import datetime
import gzip
import http.server
import io
import json
import ssl
import subprocess
import zipfile
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, unquote_to_bytes

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VALUE = 's3cr=t"Value-0123456789'
NAMES = ("good.test", "evil.test", "pinned.test")


# A part that is the same in JSON, in a URL and in a command line.
PART = VALUE[-16:]
BASIC = "Basic " + base64.b64encode(f"me:{VALUE}".encode()).decode()

# Requests that two servers could read in two ways; nothing after "/fine" may reach one.
ATTACKS = {
    "another Host": b"GET /x HTTP/1.1\r\nHost: evil.test\r\n\r\n",
    "two Hosts": b"GET /x HTTP/1.1\r\nHost: good.test\r\nHost: evil.test\r\n\r\n",
    "no Host": b"GET /x HTTP/1.1\r\n\r\n",
    "a whole address": b"GET https://evil.test/x HTTP/1.1\r\nHost: good.test\r\n\r\n",
    "CONNECT": b"CONNECT evil.test:443 HTTP/1.1\r\nHost: good.test\r\n\r\n",
    "TRACE": b"TRACE /x HTTP/1.1\r\nHost: good.test\r\n\r\n",
    "a folded line": b"GET /x HTTP/1.1\r\nHost: good.test\r\nX: y\r\n z\r\n\r\n",
    "line feeds": b"GET /x HTTP/1.1\nHost: good.test\n\n",
    "a lone CR": b"GET /x HTTP/1.1\r\nHost: good.test\r\nX: y\rZ: z\r\n\r\n",
    "a space before the colon": b"GET /x HTTP/1.1\r\nHost: good.test\r\nX : y\r\n\r\n",
    "CL.TE": b"POST /x HTTP/1.1\r\nHost: good.test\r\nContent-Length: 40\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n",
    "TE.CL": b"POST /x HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Length: 3\r\n\r\n1\r\nA\r\n0\r\n\r\n",
    "TE.TE": b"POST /x HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n"
    b"Transfer-Encoding: x\r\n\r\n0\r\n\r\n",
    "two lengths": b"POST /x HTTP/1.1\r\nHost: good.test\r\nContent-Length: 1\r\n"
    b"Content-Length: 2\r\n\r\nab",
    "a later request": b"GET /fine HTTP/1.1\r\nHost: good.test\r\n\r\n"
    b"GET /x HTTP/1.1\r\nHost: evil.test\r\n\r\n",
    "after a body": b"POST /fine HTTP/1.1\r\nHost: good.test\r\nContent-Length: 2\r\n\r\nab"
    b"GET /x HTTP/1.1\r\nHost: evil.test\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a control character": b"GET /x\x01 HTTP/1.1\r\nHost: good.test\r\n\r\n",
    "a huge head": b"GET /x HTTP/1.1\r\nHost: good.test\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
}


def wheel() -> bytes:
    """Return a package that consists of one module."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        info = "hidden-1.dist-info"
        archive.writestr("hidden.py", "found = True\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: hidden\nVersion: 1\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return made.getvalue()


def make_certificates(directory: Path) -> tuple[Path, Path]:
    """Return a file with the authority, and one with the server's chain and key."""
    now = datetime.datetime.now(datetime.UTC)

    def sign(name: str, key: Any, issuer: Any, signer: Any, extensions: list[Any]) -> Any:
        def named(text: str) -> Any:
            return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

        builder = (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named(issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )
        for one in extensions:
            builder = builder.add_extension(one, critical=False)
        return builder.sign(signer, hashes.SHA256())

    pem = serialization.Encoding.PEM
    root_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root = sign("tests", root_key, "tests", root_key, [x509.BasicConstraints(True, None)])
    names = x509.SubjectAlternativeName([x509.DNSName(one) for one in NAMES])
    leaf = sign("server", key, "tests", root_key, [names])
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (directory / "root.pem").write_bytes(root.public_bytes(pem))
    (directory / "server.pem").write_bytes(leaf.public_bytes(pem) + key.private_bytes(pem, *plain))
    return directory / "root.pem", directory / "server.pem"


class Api(http.server.ThreadingHTTPServer):
    """Records every request that reaches it: host, method, path, headers and body."""

    daemon_threads = True

    def __init__(self, chain: Path | None, address: str = "127.0.0.1") -> None:
        super().__init__((address, 0), _Api)
        self.seen: list[dict[str, Any]] = []
        self.files: Path | None = None
        self.forms: dict[str, Callable[[str], str]] = {}
        if chain is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(chain)
            self.socket = context.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass

    def sent(self, host: str) -> list[dict[str, Any]]:
        return [one for one in self.seen if one["host"].startswith(host)]


class _Api(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Api

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length).decode("latin-1") if length else self._chunks()
        seen = {
            "host": self.headers["Host"] or "",
            "method": self.command,
            "path": self.path,
            "headers": dict(self.headers.items()),
            "body": body,
        }
        self.server.seen.append(seen)
        echo = json.dumps({**seen, "value": VALUE if VALUE in str(seen) else ""}, indent=1).encode()
        path, _, query = self.path.partition("?")
        if path.startswith("/simple/"):
            self._index(path)
        elif path.startswith(("/repo.git", "/tiny.git")):
            self._git(path, query, body)
        elif path.startswith("/files/") and self.server.files is not None:
            self._file(self.server.files / path.removeprefix("/"))
        elif path == "/user":
            known = self.headers["Authorization"] == f"Bearer {VALUE}"
            self._answer(200 if known else 401, b"hello\n" if known else b"who are you\n")
        elif path == "/socket":
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            if query == "deflate":
                self.send_header("Sec-WebSocket-Extensions", "permessage-deflate")
            self.end_headers()
            self._talk()
            self.close_connection = True
        elif path == "/stream":
            # A text that the client chooses, and then nothing until the client leaves.
            text = unquote_to_bytes(query)
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(text), text))
            self.connection.recv(1)
            self.close_connection = True
        elif path == "/form":
            value = self.headers["Authorization"].removeprefix("Bearer ")
            shown = self.server.forms[unquote(query)](value)
            self._answer(200, f"[{shown}]\n".encode())
        elif path == "/large":
            self._answer(200, b"x" * int(query or 1_000_000))
        elif path == "/away":
            where = f"https://evil.test:{self.server.port}/echo"
            self._answer(302, b"", ("Location", where))
        elif path == "/split":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.send_header("X-Echo", str(self.headers["Authorization"]))
            self.end_headers()
            for at in range(0, len(echo), 3):
                piece = echo[at : at + 3]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.flush()
            self.wfile.write(b"0\r\nX-Trailer: x\r\n\r\n")
        elif path == "/gzip":
            self._answer(200, gzip.compress(echo), ("Content-Encoding", "gzip"))
        else:
            self._answer(200, echo)

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def _talk(self) -> None:
        """Send each message of a WebSocket back, and the token in the ways that one names."""
        token = self.headers["Authorization"].encode()
        half = len(token) - 8
        first, second = token[:half], token[half:]
        while data := self._message():
            if data == b"records":
                self.connection.sendall(bytes([0x81, len(token)]) + first)
                self.connection.sendall(second)
            elif data == b"fragments":
                self.connection.sendall(bytes([0x01, len(first)]) + first)
                # A control frame may come between them.
                self.connection.sendall(
                    bytes([0x89, 1]) + b"?" + bytes([0x80, len(second)]) + second
                )
            elif data == b"close":
                reason = b"\x03\xe8" + token
                self.connection.sendall(bytes([0x88, len(reason)]) + reason)
            else:
                self.connection.sendall(bytes([0x81, len(data)]) + data)

    def _message(self) -> bytes:
        """Return a message of up to 125 bytes in one frame; none at the end."""
        head = self.rfile.read(6)
        if len(head) < 6:
            return b""
        mask, payload = head[2:], self.rfile.read(head[1] & 0x7F)
        return bytes(one ^ mask[at % 4] for at, one in enumerate(payload))

    def _chunks(self) -> str:
        found = b""
        while self.headers.get("Transfer-Encoding") == "chunked":
            size = int(self.rfile.readline(), 16)
            found += self.rfile.read(size)
            self.rfile.readline()
            if not size:
                break
        return found.decode("latin-1")

    def _index(self, path: str) -> None:
        """A package index for people with a password: one wheel."""
        if self.headers["Authorization"] != BASIC:
            self._answer(401, b"", ("WWW-Authenticate", "Basic"))
        elif path.endswith(".whl"):
            self._answer(200, wheel())
        else:
            self._answer(
                200, b"<a href='hidden-1-py3-none-any.whl'>x</a>", ("Content-Type", "text/html")
            )

    def _file(self, path: Path) -> None:
        found = path.is_file()
        self._answer(200 if found else 404, path.read_bytes() if found else b"")

    def _git(self, path: str, query: str, body: str) -> None:
        if self.headers["Authorization"] != BASIC:
            return self._answer(401, b"", ("WWW-Authenticate", "Basic"))
        env = {
            "PATH": "/usr/bin:/bin",
            "GIT_PROJECT_ROOT": str(self.server.files),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "HTTP_GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_USER": "me",
        }
        done = subprocess.run(
            ["git", "http-backend"], input=body.encode("latin-1"), env=env, stdout=subprocess.PIPE
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = [line.split(": ", 1) for line in head.decode().split("\r\n")]
        self._answer(200, content, *((name, value) for name, value in fields))
        return None

    def _answer(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass
