"""A command in a live session: in this process, by a raw HTTP client, and by our SDK over HTTP.

One sandbox, made by a daemon of its own and attached to by the engine of this process, is asked in
turn, so that all three see the same machine at the same moment. The daemon listens on loopback.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from benchmarks.samples import Samples
from sandkasten import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from benchmarks.plan import Plan

EXEC: Final = "exec true, one session (argv)"
EMBEDDED, RAW, SDK = "sandkasten", "raw HTTP", "SDK over HTTP"
# The figures of a round trip settle late; a round of three costs a few milliseconds.
ROUNDS_FOR_EXEC: Final = 20
_READY = re.compile(r"sandkasten serves (\S+) and ")


def measure(samples: Samples, plan: Plan, scratch: Path) -> None:
    with (
        daemon(scratch / "http") as url,
        Sandbox(url=url) as remote,
        Sandbox.attach(remote.id, data_dir=scratch / "http") as here,
        Raw(url, f"/v1/sessions/{remote.id}/exec", {"cmd": ["/bin/true"]}) as raw,
    ):
        for _ in range(5):  # the first of each pays for connections and caches
            _round(Samples(), here, raw, remote)
        deadline = time.monotonic() + plan.section_s
        for _ in range(plan.rounds * plan.execs * ROUNDS_FOR_EXEC):
            _round(samples, here, raw, remote)
            if time.monotonic() > deadline:
                break


def _round(samples: Samples, here: Sandbox, raw: Raw, remote: Sandbox) -> None:
    turns: dict[str, Callable[[], int | None]] = {
        EMBEDDED: lambda: here.exec(["/bin/true"]).exit_code,
        RAW: lambda: raw.ask()["exit_code"],
        SDK: lambda: remote.exec(["/bin/true"]).exit_code,
    }
    for peer, turn in turns.items():
        began = time.perf_counter()
        code = turn()
        took = (time.perf_counter() - began) * 1000
        assert code == 0, (peer, code)
        samples.add(EXEC, peer, took)


class Raw:
    """As little as a client can be: one connection, one request that was written beforehand."""

    def __init__(self, url: str, path: str, body: Mapping[str, Any]) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._socket = socket.create_connection((parts.hostname, parts.port or 80))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent = json.dumps(body).encode()
        self._request = (
            f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n"
        ).encode() + sent

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self) -> dict[str, Any]:
        self._socket.sendall(self._request)
        got = b""
        while b"\r\n\r\n" not in got:
            got += self._received()
        head, _, body = got.partition(b"\r\n\r\n")
        length = int(re.findall(rb"(?i)content-length: *(\d+)", head)[0])
        while len(body) < length:
            body += self._received()
        answer: dict[str, Any] = json.loads(body)
        return answer

    def _received(self) -> bytes:
        piece = self._socket.recv(1 << 16)
        if not piece:
            raise ConnectionError("the daemon hung up")
        return piece


@contextmanager
def daemon(data_dir: Path, **environ: str) -> Iterator[str]:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "sandkasten_server.cli", "--data-dir", str(data_dir)),
            *("serve", "--listen", "127.0.0.1:0", "--log-level", "warning"),
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    )
    assert process.stderr is not None
    try:
        output = ""
        while (match := _READY.search(output)) is None:
            line = process.stderr.readline()
            if not line:
                raise RuntimeError(f"the daemon did not start: {output}")
            output += line
        yield match[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        process.stderr.close()
