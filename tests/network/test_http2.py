"""HTTP/2 and gRPC through inspected connections: real programs, and peers that mean harm."""

from __future__ import annotations

import socketserver
import sysconfig
from concurrent import futures
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from tests.network.conftest import served
from tests.network.http2_servers import ENDLESS, Http2Server, answer, hostile
from tests.network.test_sandbox_network import _egress_of
from tests.network.test_secrets import secret
from tests.network.tls_api import VALUE

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

    from sandkasten import Sandbox

pytestmark = pytest.mark.root
__all__ = ["secret"]

SHOWN = "*" * len(VALUE)


@pytest.fixture
def server(
    certificates: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Http2Server]]:
    """Return what starts a server of HTTP/2 whose authority sandboxes accept."""
    monkeypatch.setenv("SANDKASTEN_NETWORK_CA_FILES", str(certificates[0]))
    running: list[Any] = []

    def start(serve: Any = answer, **options: Any) -> Http2Server:
        started = Http2Server(certificates[1], serve, **options)
        running.append(served(started))
        running[-1].__enter__()
        return started

    yield start
    for context in running:
        context.__exit__(None, None, None)


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> str:
    """Let sandboxes mount the packages of this Python."""
    directory = sysconfig.get_path("purelib")
    monkeypatch.setenv("SANDKASTEN_POLICY_MOUNTS", f"packages={directory}:/packages")
    return "packages"


def _http2(box: Sandbox, url: str, *words: str) -> list[str]:
    """Return the lines of an answer, and at the end its version and its status."""
    shown = "%{stderr}%{http_version} %{http_code}\n"
    done = box.exec(["curl", "-sS", "-m", "30", "--http2", "-w", shown, *words, url])
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


def test_requests_of_http2_are_decided_and_get_secrets_like_others(boxed, server, secret, api):
    api2 = server()
    secret()
    rules = ["GET good.test/*", "evil.test"]
    box = boxed(network={"allow": rules, "secrets": ["TOKEN"], "inspect": True})
    *lines, version = _http2(box, f"https://good.test:{api2.port}/x?y=z", "-i")
    assert version == "2 200", lines
    (seen,) = api2.seen
    assert seen["headers"]["authorization"] == f"Bearer {VALUE}"
    assert seen["headers"][":path"] == "/x?y=z"
    assert seen["headers"][":authority"] == f"good.test:{api2.port}"
    # In the head, in the body and in trailers.
    assert f"x-echo: Bearer {SHOWN}" in lines
    assert lines[-1].endswith("x-end: done")
    assert VALUE not in str(lines)
    assert str(lines).count(SHOWN) == 2
    # What is refused is refused with the same answer.
    posted = _http2(box, f"https://good.test:{api2.port}/x", "-d", "a")
    assert posted[-1] == "2 403"
    (first,) = box.exec(
        ["curl", "-sS", "--http2", "-d", "a", f"https://good.test:{api2.port}/x"]
    ).refused
    plain = box.exec(["curl", "-sS", "-d", "a", f"https://good.test:{api.port}/x"])
    (second,) = plain.refused
    assert plain.output.splitlines() == posted[:-1]
    assert replace(first, port=second.port, allow=second.allow) == second
    assert first.allow == f"good.test:{api2.port}"
    fields = [
        {name for name, value in asdict(entry).items() if value is not None}
        for entry in box.network_log()
        if entry.event == "refused"
    ]
    assert fields == [fields[0]] * 3
    assert len(api2.seen) == 1
    # Another host gets no secret.
    *_, version = _http2(box, f"https://evil.test:{api2.port}/")
    assert version == "2 200"
    assert "authorization" not in api2.seen[1]["headers"]


def test_a_client_gets_the_protocol_that_the_server_chooses(boxed, server, api):
    both, only1 = server(), server(protocols=("http/1.1",), serve=_http1)
    box = boxed(network={"allow": ["good.test"], "inspect": True})
    assert _http2(box, f"https://good.test:{both.port}/")[-1] == "2 200"
    assert _http2(box, f"https://good.test:{only1.port}/")[-1] == "1.1 200"
    # A server that names no protocol speaks HTTP/1.1.
    assert _http2(box, f"https://good.test:{api.port}/")[-1] == "1.1 200"
    code = f"""
import socket, ssl
trusting = ssl.create_default_context()
for offer in (["h2"], ["h2", "http/1.1"], ["http/1.1", "h2"], ["http/1.1"], []):
    for port in ({both.port}, {only1.port}):
        if offer:
            trusting.set_alpn_protocols(offer)
        else:
            trusting = ssl.create_default_context()
        try:
            with socket.create_connection(("good.test", port), 10) as made:
                with trusting.wrap_socket(made, server_hostname="good.test") as made:
                    print(made.selected_alpn_protocol(), end=" ")
        except (ssl.SSLError, ConnectionError):
            print("refused", end=" ")
    print()
"""
    done = box.exec(["python3", "-c", code])
    assert done.output.splitlines() == [
        "h2 refused ",
        "h2 http/1.1 ",
        "h2 http/1.1 ",
        "http/1.1 http/1.1 ",
        "None None ",
    ], done


def _http1(_: Http2Server, client: ssl.SSLSocket) -> None:
    while client.recv(65536):
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


def test_many_streams_and_large_bodies_pass(boxed, server):
    api2 = server()
    box = boxed(network={"allow": ["good.test"], "inspect": True})
    url = f"https://good.test:{api2.port}"
    box.write("up", b"x" * 3_000_000)
    *lines, version = _http2(box, f"{url}/up", "--data-binary", "@up")
    assert version == "2 200", lines
    assert api2.seen[0]["body"] == 3_000_000
    words = [f"{url}/large" for _ in range(30)]
    parallel = ["curl", "-sS", "-m", "30", "--http2", "--parallel", "--parallel-max", "30"]
    sizes = [word for url in words for word in ("-o", "/dev/null", url)]
    done = box.exec([*parallel, "-w", "%{http_version} %{size_download}\\n", *sizes])
    assert done.stdout.splitlines() == ["2 1000000"] * 30, done


def test_a_name_that_is_not_that_of_the_connection_is_refused(boxed, server, packages):
    api2 = server()
    box = boxed(network={"allow": ["good.test"], "inspect": True}, mounts=[packages])
    code = f"""
import socket, ssl, sys
sys.path.append("/packages")
import h2.config, h2.connection, h2.events
trusting = ssl.create_default_context()
trusting.set_alpn_protocols(["h2"])
made = socket.create_connection(("good.test", {api2.port}), 10)
made = trusting.wrap_socket(made, server_hostname="good.test")
config = h2.config.H2Configuration(validate_outbound_headers=False, header_encoding="utf-8")
connection = h2.connection.H2Connection(config)
connection.initiate_connection()
head = {{":method": "GET", ":scheme": "https", ":path": "/", ":authority": "good.test:{api2.port}"}}
cases = [{{":authority": "evil.test:{api2.port}"}}, {{":authority": "good.test:1"}},
         {{"host": "evil.test"}}, {{":scheme": "http"}}, {{":path": "//evil.test/ x"}},
         {{":method": "TRACE"}}, {{}}]
for number, changed in enumerate(cases):
    fields = [*(head | changed).items()]
    connection.send_headers(2 * number + 1, fields, end_stream=True)
made.sendall(connection.data_to_send())
status = {{}}
while len(status) < len(cases):
    for event in connection.receive_data(made.recv(65536)):
        if isinstance(event, h2.events.ResponseReceived):
            status[event.stream_id] = dict(event.headers)[":status"]
        elif isinstance(event, h2.events.StreamReset):
            status.setdefault(event.stream_id, "reset")
print([status[2 * number + 1] for number in range(len(cases))])
"""
    done = box.exec(["python3", "-c", code])
    # What is not valid in HTTP/2 is a reset.
    assert done.output == "['400', '400', '400', '400', 'reset', '400', '200']\n", done
    assert len(api2.seen) == 1
    assert [entry.event for entry in box.network_log()].count("refused") == 5


class _Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Repeats what it gets in each of the four ways, with what it knows of the token."""

    def service(self, details: Any) -> Any:
        def token(context: Any) -> bytes:
            metadata = dict(context.invocation_metadata())
            context.set_trailing_metadata([("x-echo", str(metadata.get("authorization")))])
            return str(metadata.get("authorization")).encode()

        def one(request: bytes, context: Any) -> bytes:
            return request + b" " + token(context)

        def fail(_: bytes, context: Any) -> bytes:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now")
            raise AssertionError

        def many(request: bytes, context: Any) -> Iterator[bytes]:
            token(context)
            for number in range(int(request)):
                yield b"%d" % number

        def talk(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            token(context)
            for request in requests:
                yield request[::-1]

        def total(requests: Iterator[bytes], context: Any) -> bytes:
            token(context)
            return b"%d" % sum(len(request) for request in requests)

        handlers = {
            "One": grpc.unary_unary_rpc_method_handler(one),
            "Fail": grpc.unary_unary_rpc_method_handler(fail),
            "Many": grpc.unary_stream_rpc_method_handler(many),
            "Talk": grpc.stream_stream_rpc_method_handler(talk),
            "Total": grpc.stream_unary_rpc_method_handler(total),
        }
        return handlers.get(details.method.rpartition("/")[2])


_CALLS = """
import sys
sys.path.append("/packages")
import grpc
channel = grpc.secure_channel(sys.argv[1], grpc.ssl_channel_credentials())
def error(call, *words):
    try:
        call(*words, timeout=20)
    except grpc.RpcError as failed:
        return failed.code().name, failed.details()
done, call = channel.unary_unary("/t.T/One").with_call(b"hello", timeout=20)
print(done, dict(call.trailing_metadata())["x-echo"])
print(error(channel.unary_unary("/t.T/Fail"), b""))
print(error(channel.unary_unary("/t.T/Missing"), b""))
print(error(channel.unary_unary("/t.Other/One"), b"")[0])
print([*channel.unary_stream("/t.T/Many")(b"5", timeout=20)])
print(channel.stream_unary("/t.T/Total")((b"x" * 100_000 for _ in range(50)), timeout=20))
# Each message is sent when the answer to the one before has arrived.
import queue
words = queue.Queue()
words.put(b"ab")
answers = channel.stream_stream("/t.T/Talk")(iter(words.get, None), timeout=20)
for number, answer in enumerate(answers):
    print(answer, end=" ")
    words.put(None if number == 3 else answer + b"c")
print(answers.code().name)
"""


@pytest.mark.promise("P77")
def test_grpc_works_and_its_metadata_gets_a_secret(
    boxed, certificates, monkeypatch, secret, packages
):
    monkeypatch.setenv("SANDKASTEN_NETWORK_CA_FILES", str(certificates[0]))
    secret()
    pem = certificates[1].read_bytes()
    chain, key = pem.split(b"-----BEGIN PRIVATE")[0], b"-----BEGIN PRIVATE"
    key += pem.split(b"-----BEGIN PRIVATE")[1]
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[_Service()])
    credentials = grpc.ssl_server_credentials([(key, chain)])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    rules = ["POST good.test/t.T/*"]
    network = {"allow": rules, "secrets": ["TOKEN"], "inspect": True}
    box = boxed(network=network, mounts=[packages])
    done = box.exec(["python3", "-c", _CALLS, f"good.test:{port}"], timeout_seconds=60)
    server.stop(None)
    assert done.output.splitlines() == [
        f"b'hello Bearer {SHOWN}' Bearer {SHOWN}",
        "('FAILED_PRECONDITION', 'not now')",
        "('UNIMPLEMENTED', 'Method not found!')",
        "PERMISSION_DENIED",
        "[b'0', b'1', b'2', b'3', b'4']",
        "b'5000000'",
        "b'ba' b'cab' b'cbac' b'ccabc' OK",
    ], (done, box.network_log())
    (refused,) = done.refused
    assert refused.allow == f"good.test:{port}"
    asked = [entry.path for entry in box.network_log() if entry.event == "request"]
    assert asked == [f"/t.T/{name}" for name in ("One", "Fail", "Missing", "Many", "Total", "Talk")]


def _memory(pid: int) -> int:
    """Return how much memory a process has, in kB."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1])


# Two windows in each direction, heads, and what the library keeps.
MOST_MORE_KB = 12_000


@pytest.mark.parametrize("name", ENDLESS)
def test_a_server_that_sends_without_an_end_costs_its_connection(boxed, server, tmp_path, name):
    evil, good = server(hostile(ENDLESS[name])), server()
    box = boxed(network={"allow": ["good.test"], "inspect": True})
    url = f"https://good.test:{good.port}/"
    assert _http2(box, url)[-1] == "2 200"
    pid = _egress_of(box, tmp_path)
    before = _memory(pid)
    script = (
        "curl -sS -m 20 --http2 -o /dev/null -w '%{http_code}' $0 >evil 2>&1 & "
        "for n in 1 2 3 4 5; do curl -sS -m 20 --http2 -w '%{http_code} ' -o /dev/null $1; done; "
        "wait"
    )
    done = box.exec(["sh", "-c", script, f"https://good.test:{evil.port}/", url])
    assert done.output == "200 200 200 200 200 ", (done, box.read("evil"))
    assert evil.connections == 1
    assert _memory(pid) < before + MOST_MORE_KB


def test_a_handshake_that_stalls_costs_its_connection(boxed, server, api):
    class _Silent(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while self.request.recv(65536):
                pass

    silent = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Silent)
    silent.daemon_threads = True
    good = server()
    box = boxed(network={"allow": ["good.test"], "inspect": True})
    with served(silent) as port:
        script = (
            "curl -sS -m 40 --http2 $0 >evil & "
            "curl -sS -m 20 --http2 -w '%{http_code} ' -o /dev/null $1; wait; cat evil"
        )
        urls = [f"https://good.test:{port}/", f"https://good.test:{good.port}/"]
        done = box.exec(["sh", "-c", script, *urls], timeout_seconds=60)
    assert done.stdout.startswith("200 "), done
    reasons = [entry.reason for entry in box.network_log() if entry.event == "closed"]
    assert "the TLS handshake did not end in time" in reasons


# Each sends a piece of this protocol again and again until it is ended, and prints what it got.
_CLIENT = """
import socket, ssl, sys
trusting = ssl.create_default_context()
trusting.set_alpn_protocols(["h2"])
made = socket.create_connection(("good.test", int(sys.argv[1])), 20)
made = trusting.wrap_socket(made, server_hostname="good.test")
made.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
def frame(kind, flags, stream, payload):
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + payload
host = b"good.test:" + sys.argv[1].encode()
head = b"\\x82\\x87\\x84\\x41" + bytes([len(host)]) + host
try:
    for stream in range(1, 2**31, 2):
        piece = eval(sys.argv[2])
        made.sendall(piece)
        made.setblocking(False)
        try:
            while made.recv(65536):
                pass
        except ssl.SSLWantReadError:
            pass
        made.setblocking(True)
except OSError:
    print("ended")
"""
CLIENTS = {
    "rapid resets": "b''.join(frame(1, 5, n, head) + frame(3, 0, n, bytes([0, 0, 0, 8]))"
    " for n in range(200 * stream - 199, 200 * stream + 201, 2))",
    "slow resets": "frame(1, 5, stream, head) + frame(3, 0, stream, bytes([0, 0, 0, 8]))",
    "continuations": "frame(1, 0, 1, head) if stream == 1 else"
    " frame(9, 0, 1, bytes([0, 1, 97, 127, 128, 1]) + bytes(255)) * 100",
    "large tables": "frame(1, 5, stream, head + bytes([64, 1, 97, 127, 129, 30]) + b'x' * 4000"
    " + bytes([190]) * 12000)",
    "pings": "frame(6, 0, 0, bytes(8)) * 3000",
    "settings": "frame(4, 0, 0, bytes([0, 4, 0, 0, 0, 1])) * 3000",
}


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_that_makes_work_without_an_end_is_ended(boxed, server, tmp_path, name):
    api2 = server()
    box = boxed(network={"allow": ["good.test"], "inspect": True})
    url = f"https://good.test:{api2.port}/"
    assert _http2(box, url)[-1] == "2 200"
    pid = _egress_of(box, tmp_path)
    before = _memory(pid)
    done = box.exec(["python3", "-c", _CLIENT, str(api2.port), CLIENTS[name]], timeout_seconds=60)
    assert done.output == "ended\n", done
    assert _memory(pid) < before + MOST_MORE_KB
    assert _http2(box, url)[-1] == "2 200"
    # A log that grows without an end would fill the disk.
    assert len([entry for entry in box.network_log() if entry.event == "request"]) < 2000


def test_a_slow_reader_does_not_fill_the_memory(boxed, server, tmp_path):
    api2 = server()
    box = boxed(network={"allow": ["good.test"], "inspect": True})
    url = f"https://good.test:{api2.port}"
    assert _http2(box, f"{url}/")[-1] == "2 200"
    pid = _egress_of(box, tmp_path)
    before = _memory(pid)
    words = [word for _ in range(80) for word in ("-o", "/dev/null", f"{url}/large")]
    parallel = ["--parallel", "--parallel-max", "80", "--limit-rate", "300k"]
    done = box.exec(["curl", "-sS", "-m", "5", "--http2", *parallel, *words])
    assert done.exit_code is not None
    assert _memory(pid) < before + MOST_MORE_KB


class _First(socketserver.BaseRequestHandler):
    """A server that sends at once."""

    def handle(self) -> None:
        self.request.sendall(b"READY\n")
        while self.request.recv(65536):
            pass


@pytest.mark.parametrize("with_secret", [True, False])
def test_what_a_server_sends_first_does_not_reach_the_client(
    boxed, monkeypatch, secret, with_secret
):
    monkeypatch.setenv("SANDKASTEN_NETWORK_HOSTS", "good.test=127.0.0.78")
    monkeypatch.setenv("SANDKASTEN_NETWORK_REACHABLE", "127.0.0.0/8")
    secret()
    network: dict[str, Any] = {"allow": ["good.test"], "inspect": True}
    if with_secret:
        network["secrets"] = ["TOKEN"]
    code = """
import socket, sys
made = socket.create_connection(("good.test", int(sys.argv[1])), 20)
made.settimeout(1)
try:
    print(made.recv(100))
except TimeoutError:
    print("nothing")
made.settimeout(20)
made.sendall(b"GET / HTTP/1.1\\r\\nHost: good.test:%b\\r\\n\\r\\n" % sys.argv[1].encode())
print(made.recv(100)[:12].decode())
"""
    place = ("127.0.0.78", 0 if with_secret else 443)
    first = socketserver.ThreadingTCPServer(place, _First)
    first.daemon_threads = True
    with served(first) as port:
        box = boxed(network=network)
        done = box.exec(["python3", "-c", code, str(port)])
    assert done.output.splitlines() == ["nothing", "HTTP/1.1 502"], done


def test_another_protocol_whose_server_sends_first_still_passes(boxed, echo):
    box = boxed(network={"allow": ["good.test"], "inspect": True})
    code = f"""
import socket
made = socket.create_connection(("good.test", {echo}), 20)
print(made.recv(100))
made.sendall(b"\\0\\1")
print(made.recv(100))
made = socket.create_connection(("good.test", {echo}), 20)
print(made.recv(100))
made.sendall(b"GET / HTTP/1.1\\r\\nHost: good.test:{echo}\\r\\n\\r\\n")
print(made.recv(100)[:12])
"""
    done = box.exec(["python3", "-c", code])
    assert done.output.splitlines() == ["b'READY\\n'", "b'\\x00\\x01'", "b'READY\\n'",
                                        "b'HTTP/1.1 403'"], done  # fmt: skip
