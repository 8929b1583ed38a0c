"""What hostile programs in a sandbox try: it gets nowhere, and stops only their own network."""

from __future__ import annotations

import http.server
import itertools
import os
import socketserver
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.network.conftest import served
from tests.network.name_server import AAAA, NameServer
from tests.patience import PATIENCE_S
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.root

_BY_ROUTE = """
import http.server, subprocess, threading
from sandkasten import Sandbox

def ip(*commands):
    for words in commands:
        subprocess.run(["ip", *words.split()], check=True)

def serve(address, port=0):
    server = http.server.ThreadingHTTPServer((address, port), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port

ip("link set lo up", "route add local 93.184.216.0/24 dev lo")
port = serve("93.184.216.7")
late = "93.184.217.7"
with Sandbox(network={"allow": [f"93.184.216.7:{port}", f"{late}:{port}"]}) as box:
    ip("link add v0 type veth peer name v1", "link set v1 up", "link set v0 up",
       f"addr add {late}/24 dev v0")
    serve(late, port)
    for address in ("93.184.216.7", late):
        print(box.exec(["curl", "-sS", "-m", "10", f"http://{address}:{port}/"]).output)
    print([(one.event, one.rule) for one in box.network_log()])
"""


def test_an_address_of_a_route_or_a_new_device_is_the_hosts_own(tmp_path: Path):
    """In a network namespace of its own, so that the routes of this machine stay as they are."""
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", _BY_ROUTE],
        env={**os.environ, "SANDKASTEN_DATA_DIR": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout.count("may not reach") == 2, done
    refused = ("refused", "address that is not public")
    assert str([refused, refused]) in done.stdout


class _Judge(http.server.BaseHTTPRequestHandler):
    """A real, rather lenient HTTP server: what it understands as the host is what counts."""

    protocol_version = "HTTP/1.1"
    timeout = 5

    def _answer(self) -> None:
        self.server.hosts.append((self.headers["Host"] or "") + self.path)  # type: ignore[attr-defined]
        length = int(self.headers["Content-Length"] or 0)
        self.rfile.read(min(length, 65536))
        if self.headers["Upgrade"] == "websocket" and self.path == "/socket":
            self.send_response(101)
            self.end_headers()
            self.close_connection = True
            self.wfile.write(self.rfile.readline())
            return
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")

    do_GET = do_POST = do_PUT = do_CONNECT = _answer

    def log_message(self, *_: Any) -> None:
        pass


class _Court(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__((address, port), _Judge)
        self.hosts: list[str] = []

    def handle_error(self, *_: Any) -> None:
        pass


@pytest.fixture
def court() -> Iterator[_Court]:
    server = _Court()
    with served(server):
        yield server


_TALK = """
import socket, sys
def talk(*parts, end=True):
    with socket.create_connection(("good.test", {port}), 10) as made:
        made.settimeout(10)
        answer = b""
        try:
            for part in parts:
                made.sendall(part)
                if part is not parts[-1]:
                    answer += made.recv(65536)
            if end:
                made.shutdown(socket.SHUT_WR)
            while got := made.recv(65536):
                answer += got
        except OSError as exc:
            answer += b"|" + type(exc).__name__.encode()
        return answer
"""

_GOOD = b"GET /one HTTP/1.1\r\nHost: good.test\r\n\r\n"
_EVIL = b"GET /two HTTP/1.1\r\nHost: evil.test\r\n\r\n"
_POST = b"POST / HTTP/1.1\r\nHost: good.test\r\n"


@pytest.mark.promise("P75")
def test_every_request_on_a_connection_is_checked(boxed, court):
    box = boxed(network={"allow": [f"good.test:{court.server_port}"]})
    code = (
        _TALK.format(port=court.server_port)
        + f"""
print(talk({_GOOD!r}, {_GOOD.replace(b"one", b"again")!r}))
print(talk({_GOOD!r}, {_EVIL!r}))
print(talk({_GOOD + _EVIL!r}))
"""
    )
    done = box.exec(["python3", "-c", code])
    again, later, _ = done.stdout.splitlines()
    assert again.count("200 OK") == 2
    assert "200 OK" in later
    assert "403 Forbidden" in later
    assert "the client names another host" in later
    assert "network.allow" in later
    expected = ["good.test/one", "good.test/again", "good.test/one", "good.test/one"]
    # The last client is told before the server has read what passed.
    ends = time.monotonic() + PATIENCE_S
    while court.hosts != expected and time.monotonic() < ends:
        time.sleep(0.02)
    assert court.hosts == expected
    assert [one.rule for one in done.refused] == ["the client names another host"]


_CHUNKS = b"Transfer-Encoding: chunked\r\n"
_UPGRADE = b"Upgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n"
SMUGGLED = {
    "length and chunks": _POST + b"Content-Length: 4\r\n" + _CHUNKS + b"\r\n0\r\n\r\n",
    "two lengths": _POST + b"Content-Length: 0\r\nContent-Length: 99\r\n\r\n",
    "odd coding": _POST + b"Transfer-Encoding: xchunked\r\n\r\n",
    "space before the colon": _POST + b"Content-Length : 99\r\n\r\n",
    "folded": _POST + b"X: y\r\n Content-Length: 99\r\n\r\n",
    "line feed in a chunk": _POST + _CHUNKS + b"\r\n5;a\nb\r\nhello\r\n0\r\n\r\n",
    "garbage before the method": b"\x16\x03\x01\x00\x05" + _GOOD,
    "no version": b"GET /\xff\r\nHost: evil.test\r\n\r\n",
    "bare line feeds": b"GET / HTTP/1.1\nHost: good.test\n\n",
    "tunnel": b"CONNECT good.test:22 HTTP/1.1\r\nHost: good.test\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/2 by upgrade": _GOOD[:-2] + _UPGRADE + b"PRI * HTTP/2.0\r\n\r\n",
    "upgrade without consent": _GOOD[:-2] + b"Upgrade: websocket\r\n\r\n",
}


@pytest.mark.promise("P75")
def test_no_request_is_smuggled_behind_another_one(boxed, court):
    box = boxed(network={"allow": [f"good.test:{court.server_port}"]})
    streams = [one + _EVIL for one in SMUGGLED.values()]
    code = _TALK.format(port=court.server_port) + f"for one in {streams!r}: talk(one)"
    assert box.exec(["python3", "-c", code]).exit_code == 0
    assert not [one for one in court.hosts if "evil" in one or "22" in one]


def test_a_web_socket_works_when_the_server_agrees(boxed, court):
    box = boxed(network={"allow": [f"good.test:{court.server_port}"]})
    half = _GOOD.replace(b"/one", b"/socket")[:-2] + b"Upgrade: websocket\r\n"
    end = b"\r\n"
    whole = half + b"Connection: Upgrade\r\n"
    code = _TALK.format(port=court.server_port) + "".join(
        f"print(talk({ask + end!r}, b'not HTTP\\n'))\n" for ask in (whole, half)
    )
    # A request that does not ask for the change stays HTTP, whatever the server says.
    agreed, alone = box.exec(["python3", "-c", code]).stdout.splitlines()
    assert ["not HTTP" in one for one in (agreed, alone)] == [True, False]


def test_a_server_name_must_be_the_name_that_was_dialled(boxed, raw):
    """A client hello for another name; the same for one without a name is a plain connection."""
    box = boxed(network={"allow": [f"good.test:{raw.port}"]})
    code = f"""
import socket, ssl
for name in ("evil.test", "good.test"):
    inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(inward, outward, server_hostname=name)
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    with socket.create_connection(("good.test", {raw.port}), 10) as made:
        made.sendall(outward.read())
        try:
            made.recv(100)
        except OSError:
            pass
"""
    assert box.exec(["python3", "-c", code]).exit_code == 0
    (only,) = raw.received
    assert b"good.test" in only


CLOSED = [
    "127.0.0.2", "0x7f.2", "0x7f000002", "2130706434", "0177.0.0.2", "127.2", "::ffff:127.0.0.2",
    "::ffff:7f00:2", "::127.0.0.2", "64:ff9b::7f00:2", "2002:7f00:2::", "::1", "0.0.0.0", "::",
    "169.254.169.254", "fe80::1", "10.0.0.1",
]  # fmt: skip


@pytest.fixture
def closed(court) -> Iterator[_Court]:
    """Return a server at an address of this machine that no rule opens."""
    server = _Court("127.0.0.2", court.server_port)
    with served(server):
        yield server


@pytest.mark.parametrize("backend", few(["local", "gvisor"]))
def test_no_spelling_of_a_closed_address_reaches_it(boxed, court, closed, backend):
    box = boxed(backend=backend, network="full")
    code = f"""
import socket
for text in {CLOSED!r}:
    try:
        found = socket.getaddrinfo(text, {court.server_port}, type=socket.SOCK_STREAM)
    except OSError:
        continue
    for family, kind, _, _, at in found:
        with socket.socket(family, kind) as made:
            made.settimeout(5)
            try:
                made.connect(at)
                made.sendall({_GOOD!r})
                print(text, made.recv(1000))
            except OSError:
                pass
"""
    done = box.exec(["python3", "-c", code], timeout_seconds=100)
    assert done.exit_code == 0, done
    assert "200 OK" not in done.stdout
    assert (court.hosts, closed.hosts) == ([], [])


@pytest.mark.promise("P75")
def test_a_name_that_changes_its_address_gains_nothing(boxed, court, closed, monkeypatch):
    """Only 127.0.0.1 is open; the name server mixes in 127.0.0.2 in every way it can."""
    turn = itertools.count()
    answers = (
        ["127.0.0.1"],
        ["127.0.0.2"],
        ["127.0.0.2", "127.0.0.1"],
        ["127.0.0.1", "127.0.0.2"],
    )
    sixes = ["::ffff:127.0.0.2", "64:ff9b::7f00:2", "2002:7f00:2::", "::1"]

    def answer(name: str, kind: int) -> list[str]:
        return sixes if kind == AAAA else answers[next(turn) % len(answers)]

    server = NameServer(answer)
    with served(server):
        monkeypatch.setenv("SANDKASTEN_NETWORK_SERVERS", server.address)
        box = boxed(network={"allow": [f"*.rebind.test:{court.server_port}"]})
        code = f"""
import http.client
for n in range(24):
    name = f"n{{n % 12}}.rebind.test"
    try:
        made = http.client.HTTPConnection(name, {court.server_port}, timeout=5)
        made.request("GET", "/")
        made.getresponse().read()
    except OSError:
        pass
"""
        assert box.exec(["python3", "-c", code], timeout_seconds=100).exit_code == 0
    assert court.hosts
    assert closed.hosts == []


PARTS = [
    _GOOD, _EVIL, b"\r\n", b"\n", b"\r", b"Host: evil.test\r\n", b"GET / HTTP/1.1\r\n", b"\0",
    b": ", b"0\r\n\r\n", b"5\r\nhello\r\n", b"Content-Length: 5\r\n", _CHUNKS, _POST, b" ",
    b"\t", b"\x0b", b"\x16\x03\x01\x00\x05", b"http://", b"\xff" * 9, b"x" * 40000,
    b"GET http://evil.test/ HTTP/1.1\r\n", b"Host: good.test\r\n\r\n", b"Upgrade: websocket\r\n",
    b"PRI * HTTP/2.0\r\n\r\n", b"CONNECT evil.test:80 HTTP/1.1\r\n\r\n",
]  # fmt: skip

_FUZZ = """
import random, threading
seed = random.Random({seed})
parts = {parts!r}
def stream():
    made = bytearray(b"".join(seed.choices(parts, k=seed.randint(1, 8))))
    for _ in range(seed.randint(0, 2)):
        made[seed.randrange(len(made))] = seed.randrange(256)
    return bytes(made)
lock, left = threading.Lock(), {count}
def work():
    global left
    while True:
        with lock:
            if not left:
                return
            left -= 1
            one = stream()
        try:
            talk(one)
        except OSError:
            pass
threads = [threading.Thread(target=work) for _ in range(32)]
[one.start() for one in threads]
[one.join() for one in threads]
"""


@pytest.mark.parametrize(
    "count", [1000, pytest.param(100_000, marks=pytest.mark.long)], ids=["some", "many"]
)
def test_random_streams_reach_no_other_host(boxed, court, count):
    box = boxed(network={"allow": [f"good.test:{court.server_port}"]})
    fuzz = _FUZZ.format(seed=7, count=count, parts=PARTS)
    code = _TALK.format(port=court.server_port) + fuzz
    box.write("fuzz.py", code)
    done = box.exec("python3 fuzz.py", timeout_seconds=60 + count / 40)
    assert done.exit_code == 0, done
    # Hosts that are random strings are not names of anything; the one that is must not appear.
    assert not [one for one in court.hosts if "evil.test" in one.partition("/")[0]]
    assert len(court.hosts) > count / 50
    court.hosts.clear()
    again = _TALK.format(port=court.server_port) + f"print(talk({_GOOD!r}))"
    assert "200 OK" in box.exec(["python3", "-c", again]).stdout


class _Silent(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(1)


def test_a_flood_of_connections_stops_only_the_network_of_its_own_sandbox(boxed, court):
    silent = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Silent)
    silent.daemon_threads = True
    with served(silent) as port:
        flooding = boxed(network={"allow": [f"good.test:{port}"], "limits": {"connections": 50}})
        other = boxed(network={"allow": [f"good.test:{court.server_port}"]})
        code = f"""
import socket
open_ones = []
for n in range(600):
    made = socket.socket()
    made.settimeout(5)
    try:
        made.connect((("good.test", "evil.test")[n % 2], {port}))
    except OSError:
        pass
    open_ones.append(made)
print(len(open_ones))
"""
        done = flooding.exec(["python3", "-c", code], timeout_seconds=100)
        assert done.stdout == "600\n", done
        assert "limit:connections" in {one.rule for one in flooding.network_log()}
        talk = _TALK.format(port=court.server_port) + f"print(talk({_GOOD!r}))"
        assert "200 OK" in other.exec(["python3", "-c", talk]).stdout


_DATAGRAMS = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sent:
    for n in range(2000):
        try:
            sent.sendto(b"x", (f"93.184.{n // 250}.{n % 250}", 9))
        except OSError:
            pass
for family, at in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        one.bind((at, 0))
        one.settimeout(10)
        with socket.socket(family, socket.SOCK_DGRAM) as other:
            other.settimeout(10)
            other.sendto(b"question", one.getsockname())
            got, back = one.recvfrom(100)
            one.sendto(b"answer", back)
            print(got.decode(), other.recv(100).decode())
print(socket.gethostbyname("good.test")[:7])
"""


def test_datagrams_leave_no_entry_in_the_kernels_table_of_connections(boxed, web):
    """The table is memory of the kernel that no limit of the sandbox counts."""
    box = boxed(network={"allow": [f"good.test:{web}"]})
    done = box.exec(["python3", "-c", _DATAGRAMS])
    assert done.stdout.split() == ["question", "answer"] * 2 + ["198.18."], done
    count = box.exec(["cat", "/proc/sys/net/netfilter/nf_conntrack_count"])
    assert int(count.stdout) < 100
    assert box.exec(["curl", "-sS", "-m", "10", f"http://good.test:{web}/"]).exit_code == 0
