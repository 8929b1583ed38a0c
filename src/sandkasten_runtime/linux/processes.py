"""Processes held by descriptor.

A bare pid is never signalled: the process is pinned by a pidfd first and its start time compared
afterwards, so that a reused pid counts as gone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal

from sandkasten.disk.process_identity import start_time
from sandkasten.lazy_dataclass import dataclass


@dataclass(slots=True)
class Pinned:
    """A process held by a descriptor; the caller closes it."""

    pid: int
    fd: int

    def alive(self) -> bool:
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        return not poller.poll(0)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, signal.SIGKILL)

    def wait(self, timeout_s: float) -> bool:
        """Return True when it is dead (a zombie is dead)."""
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def hold_mounts(pid: int) -> int | None:
    """Return a descriptor that keeps the process's mounts until it is closed; None if not
    permitted.
    """
    try:
        return os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def pin(pid: int, started: int) -> Pinned | None:
    """Return the process that had this pid and start time, or None if it is gone."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    pinned = Pinned(pid, fd)
    if start_time(pid) != started or not pinned.alive():
        pinned.close()
        return None
    return pinned
