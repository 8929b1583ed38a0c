"""One daemon for one data directory: a lock that the kernel lets go when its holder dies.

The file says who holds it, for people; only the lock counts. Conflict names the other one.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sandkasten.disk.file_lock import open_lock, try_lock
from sandkasten.errors import Conflict, InvalidConfiguration

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_NAME = "daemon.lock"


@contextmanager
def only_daemon(data_dir: Path) -> Iterator[None]:
    path = data_dir / LOCK_NAME
    try:
        fd = open_lock(path)
    except OSError as exc:
        raise InvalidConfiguration(
            f"{path} cannot be opened: {exc.strerror}",
            hint="choose a data directory of your own",
            setting="data_dir",
        ) from exc
    try:
        if not try_lock(fd):
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
            raise Conflict(
                f"another daemon (pid {holder or 'unknown'}) serves {data_dir}",
                hint="stop it first, or give this one a data directory of its own",
            )
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)
