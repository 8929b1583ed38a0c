"""Report which names in a directory have changed (inotify), also by other processes.

The kernel queues a change before the call that made it returns, so `changed` misses nothing that
happened before it is called. Knows nothing about the content of files. Raises OSError if the kernel
refuses a watch; every caller must work without one, because an ordinary user has only 128.
"""

from __future__ import annotations

import ctypes
import os
import struct
import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_CLOSE_WRITE: Final = 0x8
_MOVED_FROM: Final = 0x40
_MOVED_TO: Final = 0x80
_DELETE: Final = 0x200
_DELETE_SELF: Final = 0x400
_MOVE_SELF: Final = 0x800
_OVERFLOW: Final = 0x4000
_IGNORED: Final = 0x8000
_ONLY_DIRECTORY: Final = 0x0100_0000
_NAMES: Final = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _DELETE
_OVER: Final = _DELETE_SELF | _MOVE_SELF | _OVERFLOW | _IGNORED
_EVENT: Final = struct.Struct("iIII")
# Several hundred events; the loop reads the rest.
_READ_BYTES: Final = 64 * 1024


class DirectoryWatch:
    """Watch one directory, without its sub-directories, from now on."""

    def __init__(self, directory: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if fd < 0:
            raise _failure()
        wanted = ctypes.c_uint32(_NAMES | _DELETE_SELF | _MOVE_SELF | _ONLY_DIRECTORY)
        if libc.inotify_add_watch(fd, ctypes.c_char_p(os.fsencode(directory)), wanted) < 0:
            failed = _failure()
            os.close(fd)
            raise failed
        self._fd = fd
        # A fork shares the queue, and an event that the child reads is lost to its parent.
        self._pid = os.getpid()
        self._close = weakref.finalize(self, os.close, fd)

    def changed(self) -> set[str] | None:
        """Return the names that changed since the last call; None if that is not known."""
        if os.getpid() != self._pid:
            return None
        names: set[str] = set()
        while True:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                return names
            except OSError:
                return None
            at = 0
            while at < len(data):
                _, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size
                if mask & _OVER:
                    return None
                names.add(os.fsdecode(data[at : at + length].rstrip(b"\0")))
                at += length

    def close(self) -> None:
        """End the watch. Twice is fine."""
        self._close()


def _failure() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
