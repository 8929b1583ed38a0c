"""A command over HTTP with spans that are sent, and without, in turns on two daemons.

The collector is a thread of this process that reads each batch and answers.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final

from benchmarks.http import Raw, daemon
from sandkasten import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.plan import Plan
    from benchmarks.samples import Samples

EXEC = "exec true over HTTP, traced"
TRACED, PLAIN = "sandkasten", "without spans"
_BODY: Final = {"cmd": ["true"]}
_UNCOUNTED: Final = 20
_ROUNDS: Final = 50


def measure(samples: Samples, plan: Plan, scratch: Path) -> None:
    with (
        collector() as endpoint,
        daemon(scratch / "traced", OTEL_EXPORTER_OTLP_ENDPOINT=endpoint) as traced,
        daemon(scratch / "plain") as plain,
        Sandbox(url=traced) as box,
        Sandbox(url=plain) as other,
        Raw(traced, f"/v1/sessions/{box.id}/exec", _BODY) as with_spans,
        Raw(plain, f"/v1/sessions/{other.id}/exec", _BODY) as without,
    ):
        deadline = time.monotonic() + plan.section_s
        for number in range(-_UNCOUNTED, plan.rounds * _ROUNDS):
            for peer, raw in ((TRACED, with_spans), (PLAIN, without)):
                began = time.perf_counter()
                answer = raw.ask()
                took = (time.perf_counter() - began) * 1000
                assert answer["exit_code"] == 0, answer
                if number >= 0:
                    samples.add(EXEC, peer, took)
            if time.monotonic() > deadline:
                break


@contextmanager
def collector() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
