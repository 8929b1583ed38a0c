"""Machines of the Modal test server: processes in namespaces of their own, on an image of ours.

Each has its own mounts, process ids, host name and, unless its network is open, network. Its root
is an overlay whose upper layer is memory, so nothing of it is left on this machine when it ends.
The server's end ends all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CHUNK: Final = 64 * 1024
# What is kept of an output that has been read, for a reader that asks for it again.
_KEPT: Final = 1 << 20
_NODES: Final = "null zero full random urandom tty"
_SCRIPT: Final = f"""
set -e
place=$1 lower=$2 files=$3 network=$4
shift 4
[ "$network" = open ] || ip link set lo up
mount -t tmpfs -o mode=755 machine "$place"
root=$place/root
mkdir "$place/up" "$place/work" "$root"
mount -t overlay -o "lowerdir=$lower,upperdir=$place/up,workdir=$place/work" machine "$root"
mkdir -p "$root/proc" "$root/dev" "$root/.old"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 dev "$root/dev"
for node in {_NODES}; do : > "$root/dev/$node"; mount --bind "/dev/$node" "$root/dev/$node"; done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
cp -a "$files/." "$root/"
cd "$root"
pivot_root . .old
umount -l /.old
rmdir /.old
echo
exec >/dev/null
exec "$@"
"""


@dataclass(slots=True)
class Output:
    """What a process wrote, by offset. It is read on only as far as somebody reads it here."""

    source: asyncio.StreamReader
    _start: int = 0
    _data: bytearray = field(default_factory=bytearray)
    _ended: bool = False

    async def read(self, offset: int) -> bytes:
        """Return bytes from the offset; empty at the end."""
        while offset >= self._start + len(self._data) and not self._ended:
            found = await self.source.read(_CHUNK)
            self._data += found
            self._ended = not found
        begin = offset - self._start
        if begin < 0:
            raise LookupError(f"output before {self._start} is gone")
        found = bytes(self._data[begin : begin + _CHUNK])
        spent = max(0, begin - _KEPT)
        if spent:
            del self._data[:spent]
            self._start += spent
        return found


@dataclass(slots=True)
class Exec:
    """A command in a machine."""

    process: asyncio.subprocess.Process
    stdout: Output
    stderr: Output
    written: int = 0

    async def write(self, offset: int, data: bytes, *, eof: bool) -> None:
        """Write what is new of a piece that may have been sent before."""
        pipe = self.process.stdin
        assert pipe is not None
        fresh = data[self.written - offset :]
        self.written += len(fresh)
        with contextlib.suppress(OSError):
            pipe.write(fresh)
            await pipe.drain()
            if eof:
                pipe.close()


class Machine:
    """Starts in `started`, and ends by itself, by `end` or with the server."""

    def __init__(self, process: asyncio.subprocess.Process, place: Path) -> None:
        self._process = process
        self._place = place
        self._pid = 0
        self._network: tuple[str, ...] = ()
        self.execs: dict[str, Exec] = {}

    @classmethod
    async def started(
        cls,
        layers: Sequence[str],
        files: Mapping[str, tuple[bytes, int]],
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        network: bool,
    ) -> Machine:
        """Start the command. `files`: content and mode by absolute path."""
        place = await asyncio.to_thread(_prepared, files)
        told, untold = os.pipe()
        spaces = ["--mount", "--pid", "--ipc", "--uts", *(() if network else ("--net",))]
        try:
            process = await asyncio.create_subprocess_exec(
                "setpriv", "--pdeathsig", "KILL",
                "unshare", *spaces, "--fork", "--kill-child", "--propagation", "private",
                "sh", "-c", _SCRIPT, "machine",
                str(place / "mounts"), ":".join(layers), str(place / "files"),
                "open" if network else "none", *command,
                env={"PATH": PATH, **env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=untold,
            )  # fmt: skip
        finally:
            os.close(untold)
        made = cls(process, place)
        made._network = () if network else ("--net",)
        try:
            # A byte: the script gives way to the command. Its end: it has failed.
            await asyncio.to_thread(os.read, told, 1)
        finally:
            os.close(told)
        made._pid = await asyncio.to_thread(_only_child, process.pid)
        return made

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    @property
    def root(self) -> Path:
        """Return its files, as this machine sees them."""
        return Path(f"/proc/{self._pid}/root")

    async def run(self, exec_id: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Start a command inside, as root; the same id again changes nothing."""
        if exec_id in self.execs:
            return
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            "nsenter", "--target", str(self._pid), "--mount", "--pid", "--ipc", "--uts",
            *self._network, "--root", "--wd=/", "--", *command,
            env={"PATH": PATH, **env}, stdin=pipe, stdout=pipe, stderr=pipe,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        self.execs[exec_id] = Exec(process, Output(process.stdout), Output(process.stderr))

    async def wait(self) -> int:
        code = await self._process.wait()
        await asyncio.to_thread(shutil.rmtree, self._place, ignore_errors=True)
        return code

    async def end(self) -> None:
        """Kill everything inside. Twice is fine."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        for one in self.execs.values():
            await one.process.wait()
        await self.wait()


def _only_child(pid: int) -> int:
    """Return the first process of a machine; 0 if it has ended."""
    with contextlib.suppress(FileNotFoundError, IndexError):
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    return 0


def _prepared(files: Mapping[str, tuple[bytes, int]]) -> Path:
    place = Path(tempfile.mkdtemp(prefix="sandkasten-modal-", dir="/var/tmp"))
    (place / "mounts").mkdir()
    (place / "files").mkdir()
    for path, (content, mode) in files.items():
        target = place / "files" / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(mode)
    return place
