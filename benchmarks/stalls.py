"""How long `/healthz` waits while other clients leave large downloads or send large bodies.

`python -m benchmarks.stalls` starts two daemons and asks both at the same moments: one is loaded,
the other is idle and shows what the machine itself adds. A client that left must cost the others
less than 50 ms. It takes two minutes, and its sparse files take no room on the disk.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from benchmarks.http import daemon
from sandkasten import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FILES: Final = {"6 GB": 6 * 10**9, "1 TB": 1 << 40}
PROBED_S: Final = 8.0
PAUSE_S: Final = 0.005
# A daemon that does not answer for so long has stalled, however long it takes.
GIVE_UP_S: Final = 60.0
BODY_BYTES: Final = 15_000_000


@dataclass(frozen=True, slots=True)
class Waits:
    """Sorted milliseconds."""

    sorted_ms: Sequence[float]

    def at(self, share: float) -> float:
        return self.sorted_ms[min(int(len(self.sorted_ms) * share), len(self.sorted_ms) - 1)]

    def __str__(self) -> str:
        return f"{self.at(0.5):8.1f} {self.at(0.99):8.1f} {self.at(1):8.1f} {len(self.sorted_ms):6}"


class Probe(threading.Thread):
    """Asks for `/healthz` until it is stopped."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._ended = threading.Event()
        self._waits: list[float] = []

    def run(self) -> None:
        while not self._ended.wait(PAUSE_S):
            began = time.perf_counter()
            try:
                with connected(self._url) as sock:
                    sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    sock.recv(4096)
            except OSError:
                self._ended.set()
            self._waits.append((time.perf_counter() - began) * 1000)

    def stop(self) -> Waits:
        self._ended.set()
        self.join()
        return Waits(sorted(self._waits))


def connected(url: str) -> socket.socket:
    parts = urlsplit(url)
    assert parts.hostname is not None
    return socket.create_connection((parts.hostname, parts.port or 80), GIVE_UP_S)


def leave(url: str, path: str, header: str = "") -> None:
    """Begin a download, and leave it after its first bytes."""
    with connected(url) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n".encode())
        sock.recv(1 << 16)


def send_for(url: str, body: bytes, until: float) -> None:
    """Send a body again and again. The session does not exist: the body alone is the work."""
    head = (
        "POST /v1/sessions/sbx_0000000000000000/fs/write HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    while time.monotonic() < until:
        with connected(url) as sock:
            sock.sendall(head + body)
            sock.recv(4096)


def bodies() -> dict[str, bytes]:
    escapes = b'{"path":"big","contents":"%s"}' % (b"\\u00e9" * (BODY_BYTES // 6))
    return {
        "escapes": escapes,
        "plain": b'{"path":"big","contents":"%s"}' % (b"a" * BODY_BYTES),
        "one key": b'{"%s":1}' % (b"k" * BODY_BYTES),
        "many strings": json.dumps({"path": "big", "contents": ["s" * 180] * 80_000}).encode(),
    }


@contextmanager
def sending(url: str, body: bytes, count: int) -> Iterator[None]:
    """Send from processes of their own: the probes must not wait for this one."""
    until = time.monotonic() + PROBED_S
    context = multiprocessing.get_context("fork")
    senders = [context.Process(target=send_for, args=(url, body, until)) for _ in range(count)]
    for sender in senders:
        sender.start()
    try:
        yield
    finally:
        for sender in senders:
            sender.join()


def measured(what: str, loaded: str, idle: str, work: Callable[[], None] | None = None) -> None:
    probes = [Probe(url) for url in (loaded, idle)]
    for probe in probes:
        probe.start()
    if work is not None:
        work()
    time.sleep(PROBED_S)
    delays = [probe.stop() for probe in probes]
    print(f"{what:28}{delays[0]}   {delays[1]}", flush=True)


def main(wanted: Sequence[str]) -> None:
    print(f"{'':28}{'loaded: p50, p99, max ms, n':>33}   {'idle daemon':>33}")
    with (
        tempfile.TemporaryDirectory(prefix="skb-") as folder,
        daemon(Path(folder) / "loaded") as loaded,
        daemon(Path(folder) / "idle") as idle,
        Sandbox(url=loaded) as box,
    ):
        measured("nothing", loaded, idle)
        for name, size in FILES.items():
            if wanted and name not in wanted:
                continue
            box.exec(["truncate", "-s", str(size), "/workspace/big"])
            path = f"/v1/sessions/{box.id}/fs/download?path=/workspace/big"
            measured(f"{name} left", loaded, idle, partial(leave, loaded, path))
            span = "Range: bytes=1000-\r\n"
            measured(f"{name} range left", loaded, idle, partial(leave, loaded, path, span))
        for name, body in bodies().items():
            for count in (1, 4):
                if not wanted or name in wanted:
                    with sending(loaded, body, count):
                        measured(f"{count} of 15 MB: {name}", loaded, idle)


if __name__ == "__main__":
    main(sys.argv[1:])
