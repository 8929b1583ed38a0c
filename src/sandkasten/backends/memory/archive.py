"""`fs.tar_in` and `fs.tar_out` of the fake runner.

The whole archive is held in memory, which a real runner would not do; the rules on members are
the protocol's: absolute names, `..`, devices and links that lead outside are `blocked`.
"""

from __future__ import annotations

import io
import posixpath
import tarfile
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sandkasten.backends.memory.refusal import Refusal
from sandkasten.backends.memory.tree import Directory, File, Link, Node, Tree
from sandkasten.backends.memory.verbs_files import check_new, located, permit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sandkasten.backends.memory.machine import Machine
    from sandkasten.backends.memory.request import Request
    from sandkasten.backends.memory.server import ServerStream, Verb

_NO_SET_ID = 0o1777


async def _tar_in(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    tree, path = machine.tree, request.raw("path")
    if request.flag("parents", True):
        check_new(machine, request, path)
        tree.make_directories(path, tree.workspace)
    base, _ = tree.directory(path, tree.workspace)
    permit(request, base.path.rstrip(b"/") + b"/member", writes=True)
    most_bytes, most_entries = (
        request.number_or_none("max_bytes"),
        request.number_or_none("max_entries"),
    )
    archive = io.BytesIO()
    while data := await stream.receive():
        archive.write(data)
    archive.seek(0)
    entries = size = 0
    try:
        with tarfile.open(fileobj=archive, mode="r:", encoding="utf-8") as members:
            for member in members:
                entries += 1
                size += member.size if member.isreg() else 0
                if (most_entries is not None and entries > most_entries) or (
                    most_bytes is not None and size > most_bytes
                ):
                    raise Refusal("too_large", "the archive holds more than was allowed")
                _unpack(tree, base.path, members, member)
    except tarfile.TarError as exc:
        raise Refusal("invalid", "this is not a tar archive") from exc
    return {"entries": entries, "bytes": size}


def _unpack(tree: Tree, base: bytes, members: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    name = _inside(member.name)
    if not name:
        return
    whole = base.rstrip(b"/") + b"/" + name
    if b"/" in name:
        tree.make_directories(whole.rsplit(b"/", 1)[0], b"/")
    place = tree.find(whole, b"/", follow=False)
    if not place.path.startswith(base.rstrip(b"/") + b"/"):
        raise Refusal("blocked", "a member leads outside through a link")
    mode = member.mode & _NO_SET_ID
    if member.isdir():
        if not isinstance(place.node, Directory):
            tree.put(place, Directory(place.parent.volume, mode=mode))
    elif member.issym():
        _inside(posixpath.join(posixpath.dirname(member.name), member.linkname))
        tree.put(place, Link(_raw(member.linkname)))
    elif member.isreg():
        body = members.extractfile(member)
        made = File(place.parent.volume, mode=mode, mtime=member.mtime)
        made.write(0, body.read() if body is not None else b"")
        made.mtime = member.mtime
        tree.put(place, made)
    elif member.islnk():
        target = tree.find(base + b"/" + _inside(member.linkname), b"/", follow=False).node
        if not isinstance(target, File):
            raise Refusal("blocked", "a hard link leads to no file of the archive")
        copy = File(place.parent.volume, mode=target.mode)
        copy.write(0, bytes(target.data))
        tree.put(place, copy)
    else:
        raise Refusal("blocked", "devices and fifos are not unpacked")


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _inside(name: str) -> bytes:
    """The name without `.` and empty parts; refused when it could lead outside."""
    raw = _raw(name)
    if raw[:1] == b"/":
        raise Refusal("blocked", "absolute names are not unpacked")
    parts: list[bytes] = []
    for part in raw.split(b"/"):
        if part == b"..":
            if not parts:
                raise Refusal("blocked", "a member leads outside")
            parts.pop()
        elif part not in (b"", b"."):
            parts.append(part)
    return b"/".join(parts)


async def _tar_out(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    place = located(machine, request, "path")
    if place.node is None:
        raise Refusal("not_found", "No such file or directory")
    packed = io.BytesIO()
    entries = size = 0
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, node in _members(place.name, place.node):
            member = tarfile.TarInfo(name)
            member.mode, member.mtime = node.mode, int(node.mtime)
            member.uid = member.gid = node.uid
            entries += 1
            if isinstance(node, File):
                member.size = len(node.data)
                size += member.size
                archive.addfile(member, io.BytesIO(bytes(node.data)))
            elif isinstance(node, Directory):
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            elif isinstance(node, Link):
                member.type = tarfile.SYMTYPE
                member.linkname = node.target.decode("utf-8", "surrogateescape")
                archive.addfile(member)
            else:
                entries -= 1
    await stream.data(packed.getvalue())
    return {"entries": entries, "bytes": size}


def _members(name: bytes, top: Node) -> Iterator[tuple[str, Node]]:
    if not isinstance(top, Directory):
        yield name.decode("utf-8", "surrogateescape"), top
        return
    stack: list[tuple[bytes, Node]] = [(b"./", top)]
    while stack:
        path, node = stack.pop()
        yield path.decode("utf-8", "surrogateescape"), node
        if isinstance(node, Directory):
            prefix = path if path.endswith(b"/") else path + b"/"
            stack.extend(
                (prefix + child, below)
                for child, below in sorted(node.children.items(), reverse=True)
            )


ARCHIVE_VERBS: Mapping[str, Verb] = MappingProxyType({"fs.tar_in": _tar_in, "fs.tar_out": _tar_out})
