"""Programs of this machine that are started without blocking the event loop.

asyncio starts a program in the loop's thread and waits there until it is executed, which takes more
than a second on a busy machine. Here a thread starts it. Its standard streams that are named become
one socket with asyncio streams at our end; the others are /dev/null. Raises OSError if it cannot be
started.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from sandkasten.disk.cleanup import finish, in_thread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    Stream = Literal["stdin", "stdout", "stderr"]


class ChildProcess:
    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self.pid = process.pid
        self.reader = reader
        self.writer = writer

    @property
    def returncode(self) -> int | None:
        """Return None while it runs, and a negative number if a signal ended it."""
        return self._process.poll()

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    async def wait(self) -> int:
        return await _status(self._process)

    async def aclose(self) -> None:
        """Kill it if it still runs, and close our end. It is gone afterwards, even if cancelled."""
        self.writer.close()
        await _ended(self._process)
        with suppress(OSError):  # It ended without reading all we wrote.
            await self.writer.wait_closed()


async def start_child(
    command: Sequence[str],
    *,
    streams: Sequence[Stream],
    env: Mapping[str, str],
    cwd: str | Path | None = None,
    new_session: bool = False,
) -> ChildProcess:
    our_end, child_end = socket.socketpair()
    process = None
    try:
        with child_end:
            process = await _started(command, streams, child_end.fileno(), env, cwd, new_session)
        reader, writer = await asyncio.open_connection(sock=our_end)
    except BaseException:
        our_end.close()
        if process is not None:
            await _ended(process)
        raise
    return ChildProcess(process, reader, writer)


async def _started(
    command: Sequence[str],
    streams: Sequence[Stream],
    connected: int,
    env: Mapping[str, str],
    cwd: str | Path | None,
    new_session: bool,
) -> subprocess.Popen[bytes]:
    def end(name: Stream) -> int:
        return connected if name in streams else subprocess.DEVNULL

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=end("stdin"),
            stdout=end("stdout"),
            stderr=end("stderr"),
            env=dict(env),
            cwd=cwd,
            start_new_session=new_session,
        )

    starting = in_thread(start)
    try:
        return await finish(starting)
    except asyncio.CancelledError:
        # The thread cannot be stopped. What it starts must not outlive the caller.
        if starting.exception() is None:
            await _ended(starting.result())
        raise


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and wait for its end, also if cancelled meanwhile."""
    process.kill()
    await finish(_status(process))


async def _status(process: subprocess.Popen[bytes]) -> int:
    if process.poll() is None:
        await _until_readable(os.pidfd_open(process.pid))
    return process.wait()


async def _until_readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(fd, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
