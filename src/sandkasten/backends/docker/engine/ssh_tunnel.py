"""An engine behind ssh: one `ssh` that forwards a private Unix socket of ours to the engine's.

The user's own ssh, so that keys, agents, jump hosts and known hosts are as he set them up. It ends
with us, however we end: its standard input is a pipe of ours, and what it runs over there reads it.
Fails with BackendUnavailable.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from typing import TYPE_CHECKING

from sandkasten.errors import BackendUnavailable

if TYPE_CHECKING:
    from sandkasten.backends.docker.engine.engine_address import Address

_READY_S = 20.0
_LOOK_AGAIN_S = 0.02
_TOLD_BYTES = 400
# Never asks for anything, and notices within a minute that the other side is gone.
_OPTIONS = (
    "BatchMode=yes",
    "ExitOnForwardFailure=yes",
    "StreamLocalBindUnlink=yes",
    "StreamLocalBindMask=0177",
    "ServerAliveInterval=15",
    "ServerAliveCountMax=3",
    "ConnectTimeout=10",
    "ControlMaster=no",
    "ControlPath=none",
    "ForwardAgent=no",
    "ForwardX11=no",
)
# What ssh may see of our environment.
_ENVIRONMENT = ("HOME", "PATH", "SSH_AUTH_SOCK", "USER", "LOGNAME", "LANG")


def command(address: Address, socket: str) -> list[str]:
    """`cat` over there reads what we never write: it ends when we do, and ssh with it."""
    options = [word for option in _OPTIONS for word in ("-o", option)]
    port = ["-p", str(address.port)] if address.port else []
    user = ["-l", address.user] if address.user else []
    forward = ["-L", f"{socket}:{address.path}"]
    return ["ssh", "-T", "-a", "-x", *options, *port, *user, *forward, "--", address.host, "cat"]


class Tunnel:
    """`socket` can be connected to after `open`. A tunnel that broke is opened anew."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._directory: str | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._opening = asyncio.Lock()

    @property
    def socket(self) -> str:
        assert self._directory is not None
        return f"{self._directory}/s"

    async def open(self) -> str:
        async with self._opening:
            if self._process is not None and self._process.returncode is None:
                return self.socket
            if self._directory is None:
                # Short, whatever the data directory is called: a socket's path has 107 bytes.
                self._directory = await asyncio.to_thread(tempfile.mkdtemp, prefix="skt-")
            await self._start()
            return self.socket

    async def _start(self) -> None:
        # One that an ssh left which was killed would look like the way that is to be opened.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.socket)
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command(self._address, self.socket),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        except OSError as exc:
            raise BackendUnavailable(
                f"ssh cannot be started: {exc.strerror or exc}",
                hint="install an ssh client (Debian: apt-get install openssh-client)",
            ) from exc
        try:
            async with asyncio.timeout(_READY_S):
                while not _there(self.socket):
                    if self._process.returncode is not None:
                        raise await self._failed()
                    await asyncio.sleep(_LOOK_AGAIN_S)
        except TimeoutError as exc:
            await self._end()
            raise BackendUnavailable(
                f"{self._address.shown} does not answer", hint="try ssh to it by hand"
            ) from exc

    async def _failed(self) -> BackendUnavailable:
        assert self._process is not None
        assert self._process.stderr is not None
        told = (await self._process.stderr.read(64 * 1024)).decode(errors="replace").strip()
        return BackendUnavailable(
            f"ssh to {self._address.shown} failed: {told[-_TOLD_BYTES:] or 'it said nothing'}",
            hint="it must work without a question: check keys, known hosts and the user's rights "
            "to the engine's socket",
        )

    async def aclose(self) -> None:
        async with self._opening:
            await self._end()
            if self._directory is not None:
                await asyncio.to_thread(shutil.rmtree, self._directory, True)
                self._directory = None

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 2)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _there(path: str) -> bool:
    return os.path.exists(path)
