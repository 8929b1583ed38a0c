"""One daemon for one data directory: a lock that the kernel lets go when its holder dies.

The file says who holds it, for people; only the lock counts. Conflict names the other one.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sandkasten.errors import Conflict, InvalidConfiguration

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_NAME = "daemon.lock"


@contextmanager
def only_daemon(data_dir: Path) -> Iterator[None]:
    path = data_dir / LOCK_NAME
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        raise InvalidConfiguration(
            f"{path} cannot be opened: {exc.strerror}",
            hint="choose a data directory of your own",
            setting="data_dir",
        ) from exc
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
            raise Conflict(
                f"another daemon (pid {holder or 'unknown'}) serves {data_dir}",
                hint="stop it first, or give this one a data directory of its own",
            ) from exc
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)
