"""Files that a command writes for a person, never over something that is there."""

from __future__ import annotations

import os

from sandkasten.errors import Conflict, FileTrouble


def write_new(path: str, text: str, *, mode: int, replace: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    flags |= os.O_TRUNC if replace else os.O_EXCL
    try:
        fd = os.open(path, flags, mode)
    except FileExistsError as exc:
        raise Conflict(f"{path} is there already", hint="say --force to replace it") from exc
    except OSError as exc:
        raise FileTrouble(f"cannot write {path}: {exc.strerror}", hint="look at the path") from exc
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
