"""A program of this machine whose output is read as a stream, with a deadline and a way to stop.

The end of the stream is reached only if the program succeeded, so a reader that publishes what it
read cannot publish half of it. Its environment is a fixed list. Blocking. Raises BuildFailed with
the end of the program's output, and Cancelled.
"""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from sandkasten.errors import BuildFailed, Cancelled, RegistryUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_CHUNK: Final = 256 * 1024
_POLL_S: Final = 0.2
_MOST_TALK_LINES: Final = 12
_MOST_LINE: Final = 300
# A bootstrap removes its scratch directory when it is asked to stop.
_GRACE_S: Final = 10.0
_PASSED_ON: Final = (
    "http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy",
    "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY",
)  # fmt: skip
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def child_environment(environ: Mapping[str, str], **more: str) -> dict[str, str]:
    """Return the environment of a helper: of our variables only those for the proxy."""
    proxies = {name: environ[name] for name in _PASSED_ON if environ.get(name)}
    return {"PATH": _PATH, "LC_ALL": "C.UTF-8", **proxies, **more}


class Deadline:
    """When blocking work must be over, and an event that cancels it earlier."""

    def __init__(self, whole_s: float, called_off: threading.Event | None = None) -> None:
        self.called_off = threading.Event() if called_off is None else called_off
        self._whole_s = whole_s
        self._ends_at = time.monotonic() + whole_s

    def check(self, what: str) -> None:
        if self.called_off.is_set():
            raise Cancelled(f"{what} was cancelled")
        if time.monotonic() >= self._ends_at:
            raise RegistryUnavailable(
                f"{what} was not done within {self._whole_s:g} s", hint="try again"
            )


class Child(io.RawIOBase):
    """Use as a context: the program is gone when the block ends."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        deadline: Deadline,
        what: str,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self._deadline = deadline
        self._what = what
        self._said = report
        self._talk: deque[str] = deque(maxlen=_MOST_TALK_LINES)
        self._ended = False
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(env),
                cwd="/",
                start_new_session=True,
            )
        except OSError as exc:
            raise BuildFailed(
                f"{what}: {command[0]} cannot be started: {exc.strerror}",
                hint=f"check that {command[0]} is installed",
            ) from exc
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        if self._ended:
            return b""
        most = _CHUNK if size is None or size < 0 else min(size, _CHUNK)
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while True:
            self._deadline.check(self._what)
            if select.select([fd], [], [], _POLL_S)[0]:
                break
        data = os.read(fd, most)
        if not data:
            self._end()
        return data

    def close(self) -> None:
        if not self.closed:
            self._stop()
            for pipe in (self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()
        super().close()

    def _end(self) -> None:
        while True:
            try:
                status = self._process.wait(_POLL_S)
                break
            except subprocess.TimeoutExpired:
                self._deadline.check(self._what)
        self._listener.join()
        if status != 0:
            talk = "\n".join(self._talk)
            raise BuildFailed(
                f"{self._what} failed with status {status}:\n{talk}",
                hint="see the end of its output above",
            )
        self._ended = True

    def _stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                # Its own session: everything it started is in the group.
                os.killpg(self._process.pid, number)
                try:
                    self._process.wait(_GRACE_S)
                except subprocess.TimeoutExpired:
                    continue
        self._listener.join(_GRACE_S)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        try:
            while line := self._process.stderr.readline(_MOST_LINE):
                text = line.decode(errors="replace").rstrip()
                if text:
                    self._talk.append(text)
                    if self._said is not None:
                        self._said(text)
        except (ValueError, Cancelled):
            # The pipe was closed, or the work cancelled: another thread stops the program.
            return
