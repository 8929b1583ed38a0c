"""No request of up to 1 MB holds the daemon's event loop: another client hardly waits.

Every route gets input that is made to be slow. What counts is the processor time of the loop's
longest callback, compared with a fixed piece of work, so that a slow or busy machine changes
nothing.
"""

from __future__ import annotations

import gc
import http.client
import json
import re
import select
import socket
import time
from contextlib import closing
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from pydantic import ValidationError

from sandkasten_server.api.routes.route_table import route_table
from tests.api.daemon_in_thread import DaemonThread
from tests.hostwatch import loopwatch
from tests.patience import PATIENCE_S
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sandkasten_server.api.route import Route

pytestmark = [pytest.mark.slow, pytest.mark.promise("P40"), pytest.mark.timeout(900)]

MB = 1 << 20
Input = TypeVar("Input")
FORM = "multipart/form-data"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
# Just below the number of values that are parsed at all.
MANY = 90_000
# The same handlers are served below /v1.
ROUTES = [
    one
    for one in route_table().routes
    if f"/v1{one.path}" not in {other.path for other in route_table().routes}
]
# They last as long as the client stays.
FOLLOWS = ("/fs/watch",)

SMALL: dict[str, Any] = {"text": "a", "list": ["a"], "object": {"a": "b"}, "any": {"a": [1]}}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonThread]:
    data_dir = tmp_path_factory.mktemp("loop") / "data"
    with DaemonThread(data_dir) as one:
        for route in ROUTES:
            # What is imported or made at first use.
            if not route.path.endswith((*FOLLOWS, "/pty")):
                asked(one, route, body=b"{}" if route.body is not None else b"")
        # As the daemon does when it is ready.
        gc.freeze()
        with loopwatch.measuring(one.ident):
            yield one
        gc.unfreeze()


def work_s() -> float:
    """Return what a fixed piece of work takes: about 50 ms where the limit was chosen."""
    return min(_work() for _ in range(3))


def _work() -> float:
    began = time.thread_time()
    for number in range(1_000_000):
        str(number)
    return time.thread_time() - began


# ---- input


def many_keys() -> dict[str, int]:
    return {f"k{n}": 1 for n in range(MANY)}


@cache
def large(kind: str, count: int) -> list[bytes]:
    """Return `count` large values of a kind as JSON; not at import, which every worker does."""
    several: list[Any]
    match kind:
        case "text":
            several = ["a/" * (MB // 2), "a" * MB, "../" * (MB // 3), "*" * (MB // 4), "{{" * 5000]
        case "list":
            several = [["a" * 20] * 32_000, [""] * MANY]
        case "object":
            several = [{f"K{n}": "" for n in range(4000)}, {f"K{n}": "" for n in range(MANY)}]
        case _:
            deep: Any = 1
            for _ in range(190):
                deep = [deep]
            several = [{"a": [1] * MANY}, {"a": deep}, many_keys()]
    return [json.dumps(one).encode() for one in several[:count]]


@cache
def yamls() -> list[bytes]:
    several = [
        "---\nsandbox: python\n---\n" + "- a\n" * (MB // 5),
        "id: a\nsteps: [" + "{}," * (MB // 8) + "]",
        "[" * 3000,
        "a: &a [b]\n" + "".join(f"a{n}: &a{n} [*a,*a,*a]\n" for n in range(20_000)),
        "---\n" + "k: {a: 1}\n" * 40_000 + "---\n",
    ]
    return [json.dumps(one).encode() for one in several]


Bodies = dict[str, "Callable[[], bytes]"]


def wrong_bodies(route: Route, *, full_size: bool) -> Bodies:
    """Return what makes bodies that do not match the route, by name."""
    assert route.body is not None
    names = list(route.body.model_fields)
    first = names[0].encode()
    each = MANY // len(names)

    def everywhere(value: Any) -> bytes:
        return json.dumps(dict.fromkeys(names, value)).encode()

    bodies: Bodies = {
        "unknown fields": lambda: json.dumps(many_keys()).encode(),
        "a million numbers": lambda: b'{"%s":[%s1]}' % (first, b"1," * (MB // 2)),
        "deep": lambda: b'{"%s":%s%s}' % (first, b"[" * (MB // 2), b"]" * (MB // 2)),
        "numbers everywhere": lambda: everywhere([1] * each),
        "pairs everywhere": lambda: everywhere({f"k{n}": 1 for n in range(each)}),
    }
    if full_size:
        bodies |= {
            "lists": lambda: b'{"%s":[%s[]]}' % (first, b"[]," * (MB // 3)),
            "lists everywhere": lambda: everywhere([[]] * (each // 2)),
            "escapes": lambda: b'{"%s":["%s"]}' % (first, b'\\"' * (MB // 2)),
        }
    return bodies


def large_bodies(route: Route, count: int) -> Iterator[tuple[str, bytes]]:
    """Bodies that match the route, `count` for each field and kind of value."""
    assert route.body is not None
    for name in route.body.model_fields:
        for kind, small in SMALL.items():
            valid = accepted(route, name, small)
            if valid is None:
                continue
            values = yamls() if name == "source" else large(kind, count)
            valid.pop(name)
            rest = "".join(f"{json.dumps(k)}:{json.dumps(v)}," for k, v in valid.items())
            for number, value in enumerate(values):
                yield f"{name}: {kind} {number}", f'{{{rest}"{name}":'.encode() + value + b"}"


def accepted(route: Route, name: str, value: object) -> dict[str, object] | None:
    """Return a smallest valid body in which `name` is `value`; None if there is none."""
    assert route.body is not None
    fields = route.body.model_fields
    body: dict[str, object] = {other: "a" for other in fields if fields[other].is_required()}
    if "timeout_ms" in fields:
        # What runs is not the daemon's work.
        body["timeout_ms"] = 100
    if "background" in fields:
        body["cmd" if name != "command" else "command"] = "true"
    body[name] = value
    try:
        route.body.model_validate(body)
    except ValidationError:
        return None
    return body


def queries() -> Iterator[tuple[str, str]]:
    names = "&".join(f"{n:x}" for n in range(8900))[:31_000]
    yield "names", f"{names}&a&a"
    yield "one name twice", "path=a&" * 4000 + "path=a"
    yield "empty names", "&" * 31_000
    yield "escapes", "path=" + "%2f" * 10_000
    yield "slashes", "path=" + "a/" * 15_000


def forms() -> Iterator[tuple[str, bytes]]:
    part = b'--b\r\nContent-Disposition: form-data; name="x%d"\r\n\r\n\r\n'
    yield "parts", b"".join(part % n for n in range(MB // 50)) + b"--b--\r\n"
    yield "headers", b"--b\r\n" + b"a: b\r\n" * (MB // 6)
    yield "one header", b"--b\r\na: " + b"b" * MB
    file = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    yield "boundaries", file + b"\r\n--" * (MB // 4) + b"\r\n--b--\r\n"
    yield "line breaks", file + b"\r\n" * (MB // 2) + b"\r\n--b--\r\n"


def test_no_body_that_is_wrong_holds_the_event_loop(daemon: DaemonThread, full_size: bool) -> None:
    held = Holds(daemon)
    for route in routes_with_body(full_size):
        bodies = wrong_bodies(route, full_size=full_size).items()
        for what, make in some(bodies, held, full_size):
            body = make()
            again = partial(asked, daemon, route, body=body)
            status = again()
            held.note(f"{route.method} {route.path} {what}: {status}", again)
            assert 400 <= status < 500 or what == "escapes"
    assert held.count > (120 if full_size else 10)
    held.check()


def test_no_body_that_is_large_holds_the_event_loop(daemon: DaemonThread, full_size: bool) -> None:
    held = Holds(daemon)
    for route in routes_with_body(full_size):
        for what, body in large_bodies(route, 9 if full_size else 1):
            again = partial(asked, daemon, route, body=body)
            status = again()
            held.note(f"{route.method} {route.path} {what}: {status}", again)
            assert status != 500
    assert held.count > (100 if full_size else 50)
    held.check()


def test_no_form_holds_the_event_loop(daemon: DaemonThread) -> None:
    held = Holds(daemon)
    for route in ROUTES:
        for what, body in forms() if FORM in route.takes else ():
            again = partial(asked, daemon, route, body=body, kind=f"{FORM}; boundary=b")
            status = again()
            held.note(f"{route.method} {route.path} {what}: {status}", again)
    held.check()


def test_no_query_holds_the_event_loop(daemon: DaemonThread, full_size: bool) -> None:
    held = Holds(daemon)
    for route in ROUTES:
        if not route.path.endswith(FOLLOWS):
            for what, query in some(queries(), held, full_size):
                again = partial(asked, daemon, route, query=query)
                status = again()
                held.note(f"{route.method} {route.path} {what}: {status}", again)
                assert status
    held.check()


def test_no_burst_of_requests_or_chunks_holds_the_event_loop(daemon: DaemonThread) -> None:
    one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = b"POST /v1/run HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunked = head + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    held = Holds(daemon)
    for what, data in (
        ("pipelined", one * (MB // len(one)) + HEALTH),
        ("chunks", chunked + b"1\r\n \r\n" * (MB // 6) + b"0\r\n\r\n"),
        ("empty lines", b"\r\n" * (MB // 2) + HEALTH),
        ("garbage", b"\0" * MB),
    ):
        again = partial(sent, daemon, data, for_s=1.0)
        status = again()
        held.note(f"{what}: {status}", again)
    held.check()


@pytest.mark.parametrize(
    ("frame", "closed"),
    few(
        [
            (b"\x89\x80\0\0\0\0", True),
            (b"\x8a\x80\0\0\0\0", True),
            (b"\x81\x81\0\0\0\0x", False),
            (b"\x82\x81\0\0\0\0x", False),
            (b"\x82\x80\0\0\0\0", False),
            (b"\x00\x80\0\0\0\0", False),
        ],
        3,
    ),
    ids=["pings", "pongs", "text", "bytes", "empty", "fragments"],
)
def test_no_burst_of_frames_holds_the_event_loop(
    daemon: DaemonThread, frame: bytes, closed: bool
) -> None:
    held = Holds(daemon)
    pty = next(route for route in ROUTES if route.path.endswith("/pty"))
    with connected(daemon) as sock:
        answer, _ = exchange(sock, request(daemon, pty), until=b"started")
        assert b" 101 " in answer, answer
        begin = b"\x02\x80\0\0\0\0" if frame[0] == 0 else b""
        _, ended = exchange(sock, begin + frame * (MB // len(frame)), for_s=1.0)
        held.note(repr(frame[:8]))
    assert ended == closed
    held.check()


LARGE_ANSWERS = {
    "control characters": "tr '\\0' '\\1' < /dev/zero | head -c 10000000",
    "UTF-8": "yes é | head -c 9999999",
    "bytes": "head -c 10000000 /dev/urandom",
}


@pytest.mark.parametrize("what", few(list(LARGE_ANSWERS), 1))
def test_no_large_answer_holds_the_event_loop(daemon: DaemonThread, what: str) -> None:
    limits = {"max_stdout_bytes": 10_000_000}
    _, made = called(daemon, "POST", "/v1/sessions", {"limits": limits, "ttl_seconds": 600})
    assert "id" in made, made
    box = f"/v1/sessions/{made['id']}"
    script = LARGE_ANSWERS[what]
    _, ran = called(daemon, "POST", f"{box}/exec", {"cmd": ["sh", "-c", f"{script} | tee large"]})
    assert ran["stdout_bytes"] >= 9_999_999, ran
    eid = ran["exec_id"]
    once = {"runtime": "bash", "code": f"{script} > a", "artifacts": ["a"], "limits": limits}
    held = Holds(daemon)
    for method, path, body, events in (
        ("GET", f"{box}/fs/read?path=large", None, False),
        ("GET", f"{box}/fs/read?path=large&max_bytes=9999999&encoding=base64", None, False),
        ("GET", f"{box}/execs/{eid}", None, False),
        ("GET", f"{box}/execs/{eid}/output?max_chunks=1000", None, False),
        ("POST", f"{box}/exec", {"cmd": ["cat", "large"]}, False),
        ("POST", f"{box}/exec/stream", {"cmd": ["cat", "large"]}, True),
        ("POST", "/v1/run", once, False),
        ("POST", "/v1/run", once, True),
    ):
        again = partial(called, daemon, method, path, body, events=events)
        status, _ = again()
        assert status == 200, path
        held.note(f"{method} {path} {what}, events: {events}", again)
    called(daemon, "DELETE", box)
    held.check()


def called(
    daemon: DaemonThread, method: str, path: str, body: Any = None, *, events: bool = False
) -> tuple[int, Any]:
    """Return the status and the parsed answer; None in place of events, which are only read."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=PATIENCE_S)
    headers = {"Content-Type": "application/json"} if body is not None else {}
    headers |= {"Accept": "text/event-stream"} if events else {}
    with closing(connection):
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        data = response.read()
        return response.status, None if events else json.loads(data)


def routes_with_body(full_size: bool) -> list[Route]:
    """Return all of them in full size, otherwise every second one that takes another body."""
    routes = [route for route in ROUTES if route.body is not None]
    return routes if full_size else list({route.body: route for route in routes}.values())[::2]


def some(inputs: Iterable[Input], held: Holds, full_size: bool) -> list[Input]:
    """Return one of the inputs, another for each route; all of them in full size."""
    listed = list(inputs)
    at = held.count % len(listed)
    return listed if full_size else [listed[at]]


class Holds:
    """The longest callback after each input."""

    def __init__(self, daemon: DaemonThread) -> None:
        self._daemon = daemon
        # Other tests use the processors at the same time; what this is about took seconds.
        self._most = 4 * work_s()
        self._found: list[tuple[float, str]] = []
        loopwatch.longest(daemon.ident)

    @property
    def count(self) -> int:
        return len(self._found)

    def note(self, what: str, again: Callable[[], object] | None = None) -> None:
        """Note the longest callback of the last input. What took too long is tried `again`: the
        host of a virtual machine may have stopped it meanwhile.
        """
        took, where = self._longest()
        for _ in range(2):
            if again is not None and took >= self._most:
                again()
                took, where = min((took, where), self._longest())
        self._found.append((took, f"{what} ({where[:300]})"))

    def _longest(self) -> tuple[float, str]:
        assert sent(self._daemon, HEALTH) == 200
        return loopwatch.longest(self._daemon.ident)

    def check(self) -> None:
        self._found.sort(reverse=True)
        shown = "\n".join(f"{took * 1000:.0f} ms  {what}" for took, what in self._found[:10])
        assert self._found[0][0] < self._most, f"limit {self._most * 1000:.0f} ms\n{shown}"


def asked(daemon: DaemonThread, route: Route, **more: Any) -> int:
    return sent(daemon, request(daemon, route, **more))


def request(
    daemon: DaemonThread,
    route: Route,
    *,
    body: bytes = b"",
    query: str = "",
    kind: str = "application/json",
) -> bytes:
    names = {"id": daemon.session, "eid": daemon.exec, "run_id": daemon.run, "port": "1"}
    names |= {"name": "sandbox_exec" if "/tools/" in route.path else "a", "rest": "a", "key": "a"}
    names |= {"cid": "ctx_python_0000000000000000", "link": "0" * 16}
    if "/workspaces/" in route.path or route.method == "DELETE":
        names["id"] = "sbx_0000000000000000"
    path = re.sub(r"\{([a-z_]+)(?::path)?\}", lambda found: names[found[1]], route.path)
    method = {"ANY": "GET", "WS": "GET"}.get(route.method, route.method)
    upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    upgrade += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    head = f"{method} {path}?{query} HTTP/1.1\r\nHost: localhost\r\n"
    head += upgrade if route.method == "WS" else "Connection: close\r\n"
    head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n" if body else ""
    return head.encode() + b"\r\n" + body


def sent(daemon: DaemonThread, data: bytes, *, for_s: float = PATIENCE_S) -> int:
    """Send bytes and return the status of the answer; 0 without one."""
    with connected(daemon) as sock:
        answer, _ = exchange(sock, data, for_s=for_s)
        return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0


def connected(daemon: DaemonThread) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", daemon.port), PATIENCE_S)
    sock.setblocking(False)
    return sock


def exchange(
    sock: socket.socket, data: bytes, *, until: bytes | None = None, for_s: float = PATIENCE_S
) -> tuple[bytes, bool]:
    """Send, and return the first bytes received, and whether the other side closed."""
    answer, left, deadline = b"", memoryview(data), time.monotonic() + for_s
    while time.monotonic() < deadline and (until is None or until not in answer):
        readable, writable, _ = select.select([sock], [sock] if left else [], [], 0.1)
        try:
            if writable:
                left = left[sock.send(left[:65536]) :]
            if readable:
                piece = sock.recv(MB)
                if not piece:
                    return answer, True
                answer = (answer + piece)[:1000]
        except ConnectionError:
            return answer, True
    return answer, False
