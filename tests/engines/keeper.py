"""Stop a machine when the process that started it ends. Also run as a program.

`python keeper.py FOLDER` waits for the end of its input, which comes when the process at the other
end ends. Processes of the machine are known by a marker in their environment and by the cgroup of
its containers. Imports only the standard library, so that it starts quickly.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

NOTE = "machine.json"
MARK = "SANDKASTEN_MACHINE"
CGROUPS = Path("/sys/fs/cgroup")
# Of tests.patience, which this does without.
_PATIENCE_S = 40.0


def who(pid: int | None = None) -> str:
    """Return an identity of a process that is unique until the host restarts."""
    pid = pid or os.getpid()
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return f"{pid}@{fields[19].decode()}"


def lives(folder: Path) -> bool:
    """Return whether the machine is in use or being created."""
    try:
        owner = json.loads((folder / NOTE).read_text())["owner"]
    except (OSError, ValueError, KeyError):
        try:
            return time.time() - folder.stat().st_mtime < _PATIENCE_S
        except OSError:
            return True
    try:
        return bool(who(int(owner.partition("@")[0])) == owner)
    except OSError:
        return False


def take_down(folder: Path) -> None:
    """End everything that runs there and remove its kernel objects, not the folder's files."""
    try:
        noted = json.loads((folder / NOTE).read_text())
    except (OSError, ValueError):
        return
    deadline = time.monotonic() + _PATIENCE_S
    while (found := [*_marked(folder), *_contained(noted["cgroup"])]) and (
        time.monotonic() < deadline
    ):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    if noted["link"]:
        _quietly("ip", "link", "delete", noted["link"])
    if noted["shares"]:
        _quietly("umount", "--lazy", noted["shares"])
    for top in _groups(noted["cgroup"]):
        for group, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(group)


def _marked(folder: Path) -> Iterator[int]:
    mark = f"{MARK}={folder}".encode()
    for pid in _pids():
        with contextlib.suppress(OSError):
            alive = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
            if alive and mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                yield pid


def _pids() -> Iterator[int]:
    own = os.getpid()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != own:
            yield int(name)


def _groups(cgroup: str) -> Iterator[Path]:
    for hierarchy in (CGROUPS, *CGROUPS.iterdir()):
        if (hierarchy / cgroup).is_dir():
            yield hierarchy / cgroup


def _contained(cgroup: str) -> Iterator[int]:
    for top in _groups(cgroup):
        for group, _, _ in os.walk(top):
            with contextlib.suppress(OSError):
                # What is frozen does not even die.
                Path(group, "freezer.state").write_text("THAWED")
            with contextlib.suppress(OSError):
                yield from map(int, Path(group, "cgroup.procs").read_text().split())


def _quietly(*words: str) -> None:
    subprocess.run(words, stderr=subprocess.DEVNULL, check=False)


def main(folder: Path) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.buffer.read()
    if folder.is_dir():
        take_down(folder)
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
