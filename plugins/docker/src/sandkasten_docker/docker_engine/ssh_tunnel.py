"""An engine behind ssh: one `ssh` process that forwards a private Unix socket to the engine's.

It is the user's own ssh, so keys, agents, jump hosts and known hosts work as configured. It ends
with this process, however that ends: its standard input is our socket, and the remote command reads
it. Fails with BackendUnavailable.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from typing import TYPE_CHECKING

from sandkasten.disk.child_process import start_child
from sandkasten.disk.cleanup import finish
from sandkasten.errors import BackendUnavailable

if TYPE_CHECKING:
    from sandkasten.disk.child_process import ChildProcess
    from sandkasten_docker.docker_engine.docker_address import DockerAddress

_READY_S = 20.0
_LOOK_AGAIN_S = 0.02
_TOLD_BYTES = 400
# Never prompts, and notices within a minute that the peer is gone.
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
# Environment variables that ssh may see.
_ENVIRONMENT = ("HOME", "PATH", "SSH_AUTH_SOCK", "USER", "LOGNAME", "LANG")


def command(address: DockerAddress, socket: str) -> list[str]:
    """Return the command line. The remote `cat` reads what we never write: it ends when we do,
    and ssh with it.
    """
    options = [word for option in _OPTIONS for word in ("-o", option)]
    port = ["-p", str(address.port)] if address.port else []
    user = ["-l", address.user] if address.user else []
    forward = ["-L", f"{socket}:{address.path}"]
    return ["ssh", "-T", "-a", "-x", *options, *port, *user, *forward, "--", address.host, "cat"]


class Tunnel:
    """A tunnel. `socket` accepts connections after `open`. A broken tunnel is opened again."""

    def __init__(self, address: DockerAddress) -> None:
        self._address = address
        self._directory: str | None = None
        self._process: ChildProcess | None = None
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
                # Short, whatever the data directory is named: a socket path has at most 107 bytes.
                self._directory = await asyncio.to_thread(tempfile.mkdtemp, prefix="skt-")
            await self._start()
            return self.socket

    async def _start(self) -> None:
        await self._end()  # One that broke.
        # A socket left by a killed ssh would look like an open tunnel.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.socket)
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        try:
            self._process = await start_child(
                command(self._address, self.socket),
                streams=("stdin", "stderr"),
                env=environment,
                new_session=True,
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
        except BaseException as exc:
            # Half open, it would be taken for a tunnel that works.
            await finish(self._end())
            if not isinstance(exc, TimeoutError):
                raise
            raise BackendUnavailable(
                f"{self._address.shown} does not answer", hint="try ssh to it by hand"
            ) from exc

    async def _failed(self) -> BackendUnavailable:
        assert self._process is not None
        output = (await self._process.reader.read(64 * 1024)).decode(errors="replace").strip()
        return BackendUnavailable(
            f"ssh to {self._address.shown} failed: {output[-_TOLD_BYTES:] or 'it said nothing'}",
            hint="ssh must work without prompting: check keys, known hosts and the user's access "
            "to the Docker Engine's socket",
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
        process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 2)
        await process.aclose()


def _there(path: str) -> bool:
    return os.path.exists(path)
