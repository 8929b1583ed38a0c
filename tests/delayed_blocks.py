"""A program that tells, inside a sandbox, which files have no blocks on the disk yet.

ext4 gives a file its blocks when it is written back: on a flush, or seconds later by itself.
"""

from __future__ import annotations

PROGRAM = """
import fcntl, struct, sys
FS_IOC_FIEMAP, DELAYED = 0xC020660B, 4
for name in sys.argv[1:]:
    # struct fiemap with room for one extent, without FIEMAP_FLAG_SYNC.
    answer = bytearray(struct.pack("=QQLLLL", 0, 2**64 - 1, 0, 0, 1, 0) + bytes(56))
    with open(name) as file:
        fcntl.ioctl(file, FS_IOC_FIEMAP, answer)
    assert struct.unpack_from("=L", answer, 20) == (1,), name
    [flags] = struct.unpack_from("=L", answer, 72)
    if flags & DELAYED:
        print(name)
"""
# More than fits into an inode.
DATA = b"x" * 10_000


def command(*names: str) -> list[str]:
    """Return the command that prints those of the files that were not flushed."""
    return ["python3", "-c", PROGRAM, *names]
