"""Run a program of this machine that fetches packages, bounded in time, output and disk use.

It sees only the environment it is given, has no terminal, and is ended with everything it started
when the time is up, the disk is full or the caller is cancelled. Its output is untrusted: the end
of it is kept, with credentials removed.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sandkasten.disk.child_process import start_child
from sandkasten.disk.cleanup import finish
from sandkasten.errors import ProvisioningFailed
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sandkasten.disk.child_process import ChildProcess

TAIL_LINES: Final = 20
_MOST_LINE: Final = 400
_CHUNK: Final = 64 * 1024
_LOOK_EVERY_S: Final = 0.5
_GRACE_S: Final = 2.0
# To the last @ before the path: a password may contain one.
_LOGIN: Final = re.compile(r"(?<=://)[^/\s]+@")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]|\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Fetched:
    status: int
    tail: tuple[str, ...]


async def fetch(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    into: Path,
    max_bytes: int,
    timeout_s: float,
    what: str,
) -> Fetched:
    """Return its status and last lines. Raise ProvisioningFailed if it exceeded a bound."""
    try:
        process = await start_child(
            command, streams=("stdout", "stderr"), env=env, cwd=into, new_session=True
        )
    except OSError as exc:
        raise ProvisioningFailed(
            f"{what}: {command[0]} cannot be started: {exc.strerror}",
            hint=f"check that {command[0]} is installed",
        ) from exc
    tail = _Tail()
    listening = asyncio.ensure_future(_listen(process.reader, tail))
    try:
        async with asyncio.timeout(timeout_s):
            while not listening.done():
                await asyncio.wait({listening}, timeout=_LOOK_EVERY_S)
                if await asyncio.to_thread(size_of, into) > max_bytes:
                    raise ProvisioningFailed(
                        f"{what}: more than {max_bytes} bytes were fetched\n{tail.text()}",
                        hint="request less, or raise packages.max_bytes",
                    )
            return Fetched(await process.wait(), tuple(tail.lines))
    except TimeoutError as exc:
        raise ProvisioningFailed(
            f"{what} took longer than {timeout_s:g} s\n{tail.text()}",
            hint="check that the index can be reached, or raise packages.timeout_seconds",
        ) from exc
    finally:
        try:
            await finish(_end(process))
        finally:
            listening.cancel()


def size_of(directory: Path) -> int:
    """Return the total size of a tree, ignoring files that vanish while walking."""
    size = 0
    for where, _, files in os.walk(directory):
        for name in files:
            with suppress(OSError):
                size += os.lstat(os.path.join(where, name)).st_size
    return size


def last_lines(output: bytes) -> tuple[str, ...]:
    """Return the end of the output of a command inside a sandbox, safe to show."""
    tail = _Tail()
    tail.add(output[-_CHUNK:])
    tail.end()
    return tuple(tail.lines)


def without_login(text: str) -> str:
    return _LOGIN.sub("…@", text)


async def _listen(stream: asyncio.StreamReader, tail: _Tail) -> None:
    while data := await stream.read(_CHUNK):
        tail.add(data)
    tail.end()


async def _end(process: ChildProcess) -> None:
    """Kill its session: everything it started is in the group, even after its own end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        if process.returncode is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_S):
                    await process.wait()
    await process.aclose()


class _Tail:
    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._rest = b""

    def add(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole:
            self._keep(line)
        # A line that never ends must not fill our memory.
        if len(self._rest) > _CHUNK:
            self.end()

    def end(self) -> None:
        if self._rest:
            self._keep(self._rest)
            self._rest = b""

    def text(self) -> str:
        return "\n".join(self.lines)

    def _keep(self, line: bytes) -> None:
        text = _CONTROL.sub("", line.decode(errors="replace")).strip()
        if text:
            self.lines.append(without_login(text)[:_MOST_LINE])
