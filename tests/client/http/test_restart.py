"""A daemon is killed and restarted; its clients continue."""

from __future__ import annotations

import os
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandkasten import Sandbox
from sandkasten.client.http import connection
from tests.client.http.served import Served, served
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="must be root to see what root sees"),
    pytest.mark.promise("P33"),
]


@contextmanager
def killable(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Served, Callable[[], None]]]:
    """Serve a daemon, and return a function that kills it and starts another."""
    # A busy machine takes longer to start a daemon than anybody else would wait for one.
    monkeypatch.setattr(connection, "PATIENT_TRIES", 10)
    with tempfile.TemporaryDirectory(prefix="pytest-of-restart-", dir="/var/tmp") as place:
        data = Path(place) / "data"
        with served(data, backend="local") as first:
            ending = threading.Event()
            listen = first.url.removeprefix("http://")

            def succeed() -> None:
                with served(data, "--listen", listen, backend="local"):
                    ending.wait(100)

            heir = threading.Thread(target=succeed)

            def kill() -> None:
                first.process.kill()
                first.process.wait(PATIENCE_S)
                heir.start()

            try:
                yield first, kill
            finally:
                ending.set()
                if heir.is_alive():
                    heir.join(60)


def test_a_restart_loses_no_output_and_no_result(monkeypatch):
    with killable(monkeypatch) as (daemon, kill), Sandbox(**daemon.where) as box:
        box.exec("export KEPT=yes; cd /tmp")
        results: list[str] = []

        def wait() -> None:
            result = box.exec("sleep 3; echo $KEPT $PWD", shell="default", timeout_seconds=60)
            results.append(result.output)

        waiting = threading.Thread(target=wait)
        waiting.start()
        stream = box.exec_stream(["sh", "-c", "for i in $(seq 60); do echo $i; sleep 0.05; done"])
        seen = [next(stream).text]
        kill()
        seen += [piece.text for piece in stream]
        waiting.join(60)
        assert "".join(seen).split() == [str(number) for number in range(1, 61)]
        assert stream.result.exit_code == 0
        assert results == ["yes /tmp\n"]


def test_a_terminal_is_resumed_after_a_restart(monkeypatch):
    with (
        killable(monkeypatch) as (daemon, kill),
        Sandbox(**daemon.where) as box,
        box.terminal() as terminal,
    ):
        terminal.send("stty -echo; MARK=here; echo ready-$MARK\n")
        shown = b""
        while b"ready-here" not in shown:
            shown += next(terminal)
        kill()
        terminal.send("echo again-$MARK; exit 5\n")
        shown = b"".join(terminal)
        assert b"again-here" in shown
        assert terminal.result().exit_code == 5
