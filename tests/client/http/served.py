"""A daemon in a separate process, for tests without an event loop."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[3]
KEY = "sk-test-of-the-client"
_READY = re.compile(r"sandkasten serves (\S+) and (\S+)")


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    socket: str
    data_dir: Path
    process: subprocess.Popen[str]
    key: str = KEY
    said: list[str] = field(default_factory=list)
    """The lines of its log after its start."""

    @property
    def where(self) -> dict[str, Any]:
        return {"url": self.url, "api_key": self.key}


@contextmanager
def served(
    data_dir: Path, *flags: str, backend: str = "unisolated", **environ: str
) -> Iterator[Served]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SANDKASTEN_")}
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.unisolated", "--data-dir", str(data_dir)),
            *("--backend", backend, "serve"),
            *(() if "--listen" in flags else ("--listen", "127.0.0.1:0")),
            *flags,
        ],
        env={
            **kept,
            "PYTHONPATH": str(REPOSITORY),
            "SANDKASTEN_API_KEY": KEY,
            **environ,
        },
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd=data_dir.parent,
    )
    assert process.stderr is not None
    said = ""
    reader: threading.Thread | None = None
    try:
        while (found := _READY.search(said)) is None:
            line = process.stderr.readline()
            assert line, f"the daemon did not start: {said}"
            said += line
        daemon = Served(found[1], found[2], data_dir, process)
        reader = threading.Thread(target=_drain, args=(process.stderr, daemon.said), daemon=True)
        reader.start()
        yield daemon
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
        if reader is not None:
            reader.join(PATIENCE_S)
        process.stderr.close()


def _drain(stream: IO[str], said: list[str]) -> None:
    """Read a pipe, which would otherwise block the daemon when it is full."""
    said.extend(stream)
