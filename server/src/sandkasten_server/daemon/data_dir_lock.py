"""The lock that lets one daemon at a time use a data directory.

The kernel releases it when the holder dies. The file contains the holder's pid for operators; only
the lock counts.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sandkasten.disk.file_lock import open_lock, try_lock
from sandkasten.disk.os_errors import disk_error, is_full
from sandkasten.errors import Conflict, InvalidConfiguration

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_NAME = "daemon.lock"


@contextmanager
def only_daemon(data_dir: Path) -> Iterator[None]:
    """Hold the lock while the block lasts; Conflict names the other daemon."""
    path = data_dir / LOCK_NAME
    try:
        fd = open_lock(path)
    except OSError as exc:
        if is_full(exc):
            raise disk_error(f"create {path}", exc) from exc
        raise InvalidConfiguration(
            f"{path} cannot be opened: {exc.strerror}",
            hint="set SANDKASTEN_DATA_DIR to a directory that you own",
            setting="data_dir",
        ) from exc
    try:
        if not try_lock(fd):
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
            raise Conflict(
                f"another daemon (pid {holder or 'unknown'}) serves {data_dir}",
                hint="stop it first, or set another data_dir for this one",
            )
        with suppress(OSError):
            # On a full disk the pid is missing; the lock counts, and what needs space fails with an
            # error.
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)
