"""ext4 file systems in a file that outlive sandboxes: create, inspect, check, grow.

They have a journal, unlike the temporary ones of `workspace_image`: these must survive a power
cut. Nothing is mounted here. Raises WorkspaceDamaged for a file system that cannot be repaired
without a decision, QuotaExceeded for a full disk, BackendUnavailable for a missing program.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from typing import TYPE_CHECKING, Final

from sandkasten.disk.free_space import check_free
from sandkasten.disk.os_errors import no_space
from sandkasten.errors import (
    BackendUnavailable,
    Cancelled,
    SandkastenError,
    WorkspaceDamaged,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.cell_spec import USER_ID
from sandkasten.model.sandbox.limits import MIB

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence
    from pathlib import Path

# Below this size ext4 has no room for its own tables; below the second, none for a journal.
MIN_BYTES: Final = 4 * MIB
_MIN_JOURNALLED: Final = 16 * MIB
# Only metadata goes through the journal, so it can be small; large workspaces have more of it.
_JOURNAL_MB: Final = 4
_LARGE_JOURNAL_MB: Final = 32
_LARGE: Final = 1024 * MIB
# Same as for temporary images: see `workspace_image`.
_BYTES_PER_INODE: Final = 16384
_MIN_INODES: Final = 4096

_WHERE: Final = "/usr/sbin:/sbin:/usr/bin:/bin"
_POLL_S: Final = 0.02
_SUPERBLOCK_AT: Final = 1024
_MAGIC: Final = 0xEF53
_NEEDS_RECOVERY: Final = 0x4
_SIXTY_FOUR_BIT: Final = 0x80
_JOURNAL: Final = 0x4
# The largest journal, which is written to its places, and as much again for repairs.
_REPAIR_BYTES: Final = 2 * _LARGE_JOURNAL_MB * MIB
# What e2fsprogs print of ENOSPC.
_FULL: Final = "No space left"


@dataclass(frozen=True, slots=True)
class FileSystem:
    """Contents of the superblock. Stale while the file system is mounted."""

    size_bytes: int
    used_bytes: int
    clean: bool
    """Unmounted cleanly and without a recorded error."""


def command(argv: Sequence[str], stop: threading.Event, timeout_s: float) -> tuple[int, str]:
    """Run a program; return its exit status and the end of its output. Raise Cancelled if
    `stop` is set.
    """
    program = shutil.which(argv[0], path=_WHERE)
    if program is None:
        raise BackendUnavailable(
            f"{argv[0]} is not installed, so named workspaces cannot be kept",
            hint="apt-get install e2fsprogs",
        )
    process = subprocess.Popen(
        [program, *argv[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"PATH": _WHERE, "LC_ALL": "C"},
    )
    deadline = time.monotonic() + timeout_s
    output = b""
    with process:
        while True:
            try:
                output = process.communicate(timeout=_POLL_S)[0]
            except subprocess.TimeoutExpired:
                late = time.monotonic() > deadline
                if not late and not stop.is_set():
                    continue
                process.kill()
                process.communicate()
                if late:
                    raise BackendUnavailable(
                        f"{argv[0]} did not end within {timeout_s:g} s", hint="look at the disk"
                    ) from None
                raise Cancelled(
                    f"{argv[0]} was stopped before it finished", hint="try again"
                ) from None
            break
    return process.returncode, output.decode("utf-8", "replace").strip()[-500:]


def make(path: Path, size: int, stop: threading.Event) -> None:
    """Create a file system in a new file, all of it on disk when this returns."""
    size = max(size, MIN_BYTES)
    features = "^resize_inode"
    journal: tuple[str, ...] = ()
    if size >= _MIN_JOURNALLED:
        journal = ("-J", f"size={_LARGE_JOURNAL_MB if size >= _LARGE else _JOURNAL_MB}")
    else:
        features += ",^has_journal"
    with open(path, "xb") as file:
        file.truncate(size)
        status, output = command(
            (
                "mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096", "-O", features, *journal,
                "-N", str(max(_MIN_INODES, size // _BYTES_PER_INODE)),
                "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"
                f",root_owner={USER_ID}:{USER_ID}",
                os.fspath(path),
            ),
            stop,
            60,
        )  # fmt: skip
        if status != 0:
            raise _trouble("make a workspace", output)
        os.fsync(file.fileno())


def look(path: Path) -> FileSystem:
    """Read the superblock. Raise WorkspaceDamaged if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(_SUPERBLOCK_AT)
            block = file.read(1024)
            length = os.fstat(file.fileno()).st_size
    except OSError as exc:
        raise WorkspaceDamaged(
            f"the volume of workspace {path.parent.name} cannot be read: {exc.strerror or exc}",
            hint="restore it from a copy, or delete the workspace",
        ) from exc
    if len(block) < 1024 or _word(block, 56, "H") != _MAGIC:
        raise WorkspaceDamaged(
            f"the volume of workspace {path.parent.name} does not contain an ext4 file system",
            hint="restore it from a copy, or delete the workspace",
        )
    unit = 1024 << min(_word(block, 24), 6)
    blocks = _word(block, 4) | _word(block, 0x150) << 32
    if blocks * unit > length:
        raise WorkspaceDamaged(
            f"the volume of workspace {path.parent.name} is truncated: {length} bytes are left "
            f"of {blocks * unit}",
            hint="restore it from a copy, or delete the workspace",
        )
    free = _word(block, 12) | _word(block, 0x158) << 32
    # Zero after a resize, until the kernel has counted again.
    overhead = _word(block, 0x248) or _overhead(block, blocks, unit)
    state = _word(block, 58, "H")
    clean = state & 1 == 1 and state & 2 == 0 and not _word(block, 96) & _NEEDS_RECOVERY
    return FileSystem(blocks * unit, max(0, blocks - free - overhead) * unit, clean)


def check(path: Path, stop: threading.Event, *, thorough: bool = False) -> None:
    """Repair what can be repaired without a decision. Raise WorkspaceDamaged if that is not all."""
    file = path.stat()
    # A repair that ends for lack of space leaves more damage than it found.
    need = min(_REPAIR_BYTES, max(0, file.st_size - file.st_blocks * 512))
    check_free(path, need, f"check workspace {path.parent.name}")
    words = ("e2fsck", "-p", *(("-f",) if thorough else ()), os.fspath(path))
    status, output = command(words, stop, 1800)
    # 1 and 2: errors were corrected. From 4 on the file system is left unchanged.
    if status >= 4:
        if _FULL in output:
            raise no_space(f"could not check workspace {path.parent.name}: the disk is full")
        raise WorkspaceDamaged(
            f"the file system of workspace {path.parent.name} is damaged: {output[-200:]}",
            hint=f"look at it with: e2fsck -n {path}; repair it with: e2fsck -y {path}",
        )


def grow(path: Path, size: int, stop: threading.Event) -> None:
    """Enlarge the file system offline. A resize that failed half-way is completed by the next
    attempt.
    """
    check(path, stop, thorough=True)
    with path.open("rb+") as file:
        if os.fstat(file.fileno()).st_size < size:
            file.truncate(size)
        status, output = command(("resize2fs", "-f", os.fspath(path)), stop, 1800)
        if status != 0:
            raise _trouble("enlarge a workspace", output)
        os.fsync(file.fileno())


def _trouble(attempt: str, output: str) -> SandkastenError:
    if _FULL in output:
        return no_space(f"could not {attempt}: the disk is full")
    return BackendUnavailable(
        f"could not {attempt}: {output[-200:]}",
        hint="check free space and permissions below the data directory",
    )


def _overhead(block: bytes, blocks: int, unit: int) -> int:
    """Return the number of blocks used by tables, bitmaps, superblock copies and the journal."""
    groups = -(-blocks // max(1, _word(block, 32)))
    described = _word(block, 0xFE, "H") if _word(block, 96) & _SIXTY_FOUR_BIT else 32
    copies = sum(_has_copy(group) for group in range(groups))
    tables = 2 + -(-_word(block, 40) * _word(block, 88, "H") // unit)
    copied = 1 + -(-groups * described // unit) + _word(block, 0xCE, "H")
    journal = (_word(block, 0x148) << 32 | _word(block, 0x14C)) // unit
    return groups * tables + copies * copied + (journal if _word(block, 92) & _JOURNAL else 0)


def _has_copy(group: int) -> bool:
    if group <= 1:
        return True
    for base in (3, 5, 7):
        power = base
        while power < group:
            power *= base
        if power == group:
            return True
    return False


def _word(block: bytes, at: int, kind: str = "I") -> int:
    return int(struct.unpack_from("<" + kind, block, at)[0])
