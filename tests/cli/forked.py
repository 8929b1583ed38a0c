"""The command line as a process, without importing the program each time.

Starting an interpreter and importing is three quarters of the cost of a command. Here that is done
once, by a process with one thread; every command is a fork of it, with its own arguments,
environment, directory and files 0 to 2, and ends as an interpreter ends. Tests of signals,
terminals and the start itself run `python -m sandkasten.cli`.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PATIENCE_S = 60.0
_LARGEST = 1 << 17


class Command:
    """`run` does what `subprocess.run` would do, with captured output."""

    def __init__(self, there: socket.socket) -> None:
        self._there = there

    def run(self, *words: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        with tempfile.TemporaryFile() as given, _file() as out, _file() as err:
            given.write(stdin or b"")
            given.seek(0)
            asked = {"words": words, "environ": dict(os.environ), "cwd": os.getcwd()}
            files = array.array("i", [given.fileno(), out.fileno(), err.fileno()])
            self._there.sendmsg(
                [json.dumps(asked).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)]
            )
            status = int(self._there.recv(16) or b"96")
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(words, status, out.read(), err.read())


def _file() -> IO[bytes]:
    return tempfile.TemporaryFile()


@contextmanager
def command() -> Iterator[Command]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        for end in (here, there):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST)
        here.settimeout(_PATIENCE_S)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.forked", str(there.fileno())],
            pass_fds=[there.fileno()],
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )
        there.close()
        try:
            yield Command(here)
        finally:
            here.close()
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise


def _serve(there: socket.socket) -> list[str] | None:
    """Serve requests in the first process; return the words of the command in each fork."""
    while True:
        asked, files, _, _ = socket.recv_fds(there, _LARGEST, 3)
        if not asked:
            return None
        pid = os.fork()
        if pid == 0:
            there.close()
            told = json.loads(asked)
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            os.environ.clear()
            os.environ.update(told["environ"])
            os.chdir(told["cwd"])
            return [str(word) for word in told["words"]]
        for file in files:
            os.close(file)
        _, ended = os.waitpid(pid, 0)
        there.send(str(os.waitstatus_to_exitcode(ended)).encode())


def _read() -> None:
    """Import what a command on real sandboxes imports, with and without a daemon."""
    import sandkasten.backends.local
    import sandkasten.cli.command_table
    import sandkasten.cli.commands.cp
    import sandkasten.cli.commands.exec
    import sandkasten.cli.commands.listings
    import sandkasten.cli.commands.run
    import sandkasten.cli.commands.sandbox_lifecycle
    import sandkasten.client.http.http_transport
    import sandkasten.client.server.embedded
    import sandkasten.daemon.engine_assembly  # noqa: F401


if __name__ == "__main__":
    _read()
    words = _serve(socket.socket(fileno=int(sys.argv[1])))
    if words is not None:
        from sandkasten.cli.main import main

        main(words)
