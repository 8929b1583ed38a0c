"""A machine of the test server: processes in namespaces of their own, on the files of an image.

It has no kernel of its own and no limits; all else is as on Fly: the files and the first process
of its configuration, a network in which only its services can be reached, and nothing that is left
when it ends.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_NAMESPACES = ["--mount", "--pid", "--net", "--ipc", "--uts", "--propagation", "private"]
# As root of the machine: mount its files, make them the root, start the first process.
_BOOT = """
set -e
place=$1 lower=$2; shift 2
cd "$place"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$place/upper,workdir=$place/work" root
cd root
mkdir -p proc sys dev tmp run old
mount -t proc proc proc
mount -t tmpfs -o mode=755 dev dev
mkdir dev/pts dev/shm
mount -t tmpfs -o mode=1777 shm dev/shm
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for one in null zero full random urandom tty; do
    touch dev/$one
    mount --bind /dev/$one dev/$one
done
chmod 1777 tmp
pivot_root . old
exec chroot . /bin/sh -c 'umount -l /old; rmdir /old; exec "$@"' sh "$@"
"""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HOST_NETWORK = os.stat("/proc/self/ns/net").st_ino
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class FlyMachine:
    place: Path
    config: dict[str, Any]
    variables: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    exit_code: int | None = None
    said: bytes = field(default=b"")
    _gone: bool = False
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def start(self, layers: list[Path]) -> None:
        with self._changing:
            if not self._gone:
                self._start(layers)

    def _start(self, layers: list[Path]) -> None:
        for name in ("upper", "work", "root"):
            (self.place / name).mkdir(parents=True)
        for file in self.config.get("files") or ():
            path = self.place / "upper" / file["guest_path"].lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(base64.b64decode(file["raw_value"]))
            path.chmod(file.get("mode") or 0o644)
        command = (self.config.get("init") or {}).get("exec") or ["/bin/true"]
        lower = ":".join(str(one) for one in layers)
        self.process = subprocess.Popen(
            ["unshare", *_NAMESPACES, "--fork", "--kill-child=KILL", "/bin/sh", "-c", _BOOT, "sh",
             str(self.place), lower, *command],
            env={"PATH": _PATH, **self.variables, **(self.config.get("env") or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip

    async def ended(self) -> int:
        """Return the exit code of the first process when the machine has ended."""
        if self.process is None:
            return 0
        _, self.said = await asyncio.to_thread(self.process.communicate)
        self.exit_code = self.process.returncode
        return self.exit_code

    async def remove(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self.place, ignore_errors=True)

    def end(self) -> None:
        """End it without a word, also one that is starting."""
        with self._changing:
            self._gone = True
        if self.process is not None:
            # The whole group: a child of unshare that has just begun does not end with it yet.
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    async def dial(self, port: int) -> socket.socket | None:
        """Connect to a port inside; None if that cannot be."""
        with ThreadPoolExecutor(1) as alone:
            return await asyncio.get_running_loop().run_in_executor(alone, self._dial, port)

    def _dial(self, port: int) -> socket.socket | None:
        assert self.process is not None
        try:
            network = os.open(f"/proc/{self.process.pid}/ns/net", os.O_RDONLY)
        except OSError:
            return None
        try:
            # It may not have entered its own yet.
            if os.fstat(network).st_ino == _HOST_NETWORK:
                return None
            if _libc.setns(network, _CLONE_NEWNET):
                return None
        finally:
            os.close(network)
        found = socket.socket()
        try:
            fcntl.ioctl(found, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
            found.settimeout(2)
            found.connect(("127.0.0.1", port))
        except OSError:
            found.close()
            return None
        found.setblocking(False)
        return found
