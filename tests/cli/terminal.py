"""An interactive terminal for tests: types, and waits for expected output."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from typing import Self

from tests.patience import PATIENCE_S


class Person:
    """Runs a command line on a pseudo terminal of the given size."""

    def __init__(self, command: list[str], rows: int = 30, cols: int = 100) -> None:
        self.seen = b""
        self._status: int | None = None
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.execvp(command[0], command)
            finally:
                os._exit(96)
        self.resize(rows, cols)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def wait_for(self, text: str, seconds: float = PATIENCE_S) -> None:
        """Wait until the text has appeared, and look only past it next time."""
        end = time.monotonic() + seconds
        while text.encode() not in self.seen:
            if not self._look(end - time.monotonic()):
                raise AssertionError(f"{text!r} did not appear; last seen: {self.seen[-2000:]!r}")
        self.seen = self.seen.split(text.encode(), 1)[1]

    def status(self, seconds: float = PATIENCE_S) -> int:
        """Return the exit status once the program has ended."""
        end = time.monotonic() + seconds
        while self._look(end - time.monotonic()):
            pass
        while self._status is None:
            done, raw = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self._status = os.waitstatus_to_exitcode(raw)
            elif time.monotonic() > end:
                raise AssertionError(f"it did not end; last seen: {self.seen[-2000:]!r}")
            else:
                time.sleep(0.01)
        return self._status

    def cooked(self) -> bool:
        """Return whether the terminal is in its normal mode: lines, echo, signals."""
        wanted = termios.ICANON | termios.ECHO | termios.ISIG
        return termios.tcgetattr(self.fd)[3] & wanted == wanted

    def _look(self, seconds: float) -> bool:
        ready, _, _ = select.select([self.fd], [], [], max(0.0, seconds))
        if not ready:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.seen += data
        return bool(data)
