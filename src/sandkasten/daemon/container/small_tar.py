"""Small files as tar archives, the way an engine takes them into a container's volumes. Pure."""

from __future__ import annotations

import io
import posixpath
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.daemon.container.install_plan import User


def packed(files: Mapping[str, bytes], below: str, user: User) -> bytes:
    """`files` by whole path; theirs and their directories' owner is `user`, and nobody else's."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        made: set[str] = set()
        for path, content in sorted(files.items()):
            name = posixpath.relpath(path, below)
            directory = posixpath.dirname(name)
            if directory and directory not in made:
                made.add(directory)
                archive.addfile(_member(directory, user, tarfile.DIRTYPE, 0o700))
            member = _member(name, user, tarfile.REGTYPE, 0o600)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return written.getvalue()


def _member(name: str, user: User, kind: bytes, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode = kind, mode
    member.uid, member.gid = user.uid, user.gid
    return member
