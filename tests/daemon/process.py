"""A daemon as a process: started, killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.patience import FAR_TOO_LATE_S, PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import aiohttp

_READY = re.compile(rb"sandkasten serves (\S+) and ")


class DaemonProcess:
    def __init__(self, data_dir: Path, *flags: str, environ: dict[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self.url = ""
        self.said = b""
        self.said_before = b""
        """What the processes before this one said."""
        self._flags = flags
        self._environ = environ or {}
        self.begun = asyncio.Event()
        """There is a process, which may have said nothing yet."""
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self, *flags: str) -> float:
        """Start the daemon and return the seconds until it reported ready."""
        began = time.monotonic()
        self.begun.clear()
        listen = () if "--listen" in (*self._flags, *flags) else ("--listen", "127.0.0.1:0")
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sandkasten_server.cli", "--data-dir", str(self.data_dir),
            "serve", *listen, *self._flags, *flags,
            stderr=asyncio.subprocess.PIPE,
            stdin=asyncio.subprocess.DEVNULL,
            env={**os.environ, **self._environ},
        )  # fmt: skip
        self.said_before += self.said
        self.said = b""
        assert self._process.stderr is not None
        ready = asyncio.Event()
        self._reading = asyncio.create_task(self._read(self._process.stderr, ready))
        self.begun.set()
        async with asyncio.timeout(FAR_TOO_LATE_S):
            ending = asyncio.create_task(self._process.wait())
            waiting = asyncio.create_task(ready.wait())
            await asyncio.wait((ending, waiting), return_when=asyncio.FIRST_COMPLETED)
            for task in (ending, waiting):
                task.cancel()
        found = _READY.search(self.said)
        assert found is not None, self.said.decode(errors="replace")
        self.url = found[1].decode()
        return time.monotonic() - began

    async def _read(self, stream: asyncio.StreamReader, ready: asyncio.Event) -> None:
        while line := await stream.readline():
            self.said += line
            if _READY.search(line):
                ready.set()

    async def kill(self) -> None:
        """Kill the daemon with SIGKILL."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        await self._ended()

    async def stop(self) -> int:
        """Stop the daemon as a service manager does; return the exit status."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        return await self._ended()

    async def _ended(self) -> int:
        assert self._process is not None
        assert self._reading is not None
        async with asyncio.timeout(PATIENCE_S):
            code = await self._process.wait()
            await self._reading
        return code


@asynccontextmanager
async def running(data_dir: Path, *flags: str, **more: Any) -> AsyncIterator[DaemonProcess]:
    daemon = DaemonProcess(data_dir, *flags, **more)
    await daemon.start()
    try:
        yield daemon
    finally:
        await daemon.stop()
        await cleared(data_dir, more.get("environ"))


async def cleared(data_dir: Path, environ: dict[str, str] | None = None) -> None:
    """Remove every sandbox of a data directory."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sandkasten_server.cli", "--data-dir", str(data_dir), "rm", "--all",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, **(environ or {})},
    )  # fmt: skip
    await process.wait()


async def ask(
    http: aiohttp.ClientSession, method: str, url: str, body: object = None, **more: Any
) -> tuple[int, Any]:
    if body is not None:
        more["json"] = body
    async with http.request(method, url, **more) as reply:
        text = await reply.text()
        try:
            return reply.status, json.loads(text) if text else None
        except ValueError:
            raise AssertionError(f"{method} {url}: {reply.status} {text[:500]}") from None
