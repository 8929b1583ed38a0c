"""The `fs.*` verbs of the fake runner, tar apart."""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sandkasten.backends.memory.refusal import Refusal
from sandkasten.backends.memory.tree import (
    Change,
    Directory,
    File,
    Link,
    Node,
    Place,
    Special,
)
from sandkasten.wire.json_bodies import encode_body
from sandkasten.wire.messages import from_bytes_json, to_bytes_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sandkasten.backends.memory.machine import Machine
    from sandkasten.backends.memory.request import Request
    from sandkasten.backends.memory.server import ServerStream, Verb

_MAX_PAGE = 5000
_MAX_PAGE_BYTES = 900 * 1024
_READ_BYTES = 256 * 1024
_MAX_CHANGES = 4096


def entry(path: bytes, node: Node) -> dict[str, Any]:
    kind = {Directory: "directory", File: "file", Link: "symlink"}.get(type(node))
    described: dict[str, Any] = {
        "path": to_bytes_json(path),
        "name": to_bytes_json(path.rsplit(b"/", 1)[-1] or b"/"),
        "type": kind if kind is not None else getattr(node, "kind", "file"),
        "size": _size(node),
        "mode": node.mode & 0o7777,
        "mtime_unix": int(node.mtime),
        "uid": node.uid,
        "gid": node.uid,
    }
    if isinstance(node, Link):
        described["target"] = to_bytes_json(node.target)
    return described


def _size(node: Node) -> int:
    if isinstance(node, File):
        return len(node.data)
    return len(node.target) if isinstance(node, Link) else 0


def _under(path: bytes, prefix: bytes) -> bool:
    plain = prefix.rstrip(b"/")
    return path == plain or path.startswith(plain + b"/")


def permit(request: Request, path: bytes, *, writes: bool) -> None:
    """The caller's own rules, on the real path."""
    if any(_under(path, prefix) for prefix in request.raw_list("deny")):
        raise Refusal("blocked", "this path is blocked by policy")
    if writes and request.has("within"):
        parent = path.rsplit(b"/", 1)[0] or b"/"
        if not any(_under(parent, prefix) for prefix in request.raw_list("within")):
            raise Refusal("blocked", "this path may not be written")


def located(
    machine: Machine, request: Request, field: str, *, follow: bool = True, writes: bool = False
) -> Place:
    place = machine.tree.find(request.raw(field), machine.tree.workspace, follow=follow)
    permit(request, place.path, writes=writes)
    return place


def _existing(place: Place) -> Node:
    if place.node is None:
        raise Refusal("not_found", "No such file or directory")
    return place.node


async def _stat(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    place = located(machine, request, "path", follow=request.flag("follow", True))
    return entry(place.path, _existing(place))


async def _list(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    place = located(machine, request, "path")
    node = _existing(place)
    if not isinstance(node, Directory):
        raise Refusal("not_directory", "Not a directory")
    if not node.mode & 0o400:
        raise Refusal("permission", "Permission denied")
    limit = min(request.number("limit", 1000) or 1000, _MAX_PAGE)
    cursor = request.raw_or_none("cursor")
    after = None if cursor is None else cursor.split(b"/")
    entries: list[dict[str, Any]] = []
    weight = 0
    base = place.path.rstrip(b"/")
    for parts, child in _walk(node, after, recursive=request.flag("recursive", False)):
        described = entry(base + b"/" + b"/".join(parts), child)
        weight += len(encode_body(described)) + 1
        if len(entries) == limit or weight > _MAX_PAGE_BYTES:
            path = _path_of(entries[-1])[len(base) + 1 :]
            return {"entries": entries, "next": to_bytes_json(path)}
        entries.append(described)
    return {"entries": entries, "next": None}


def _path_of(described: dict[str, Any]) -> bytes:
    return from_bytes_json(described["path"], "path").encode("utf-8", "surrogateescape")


def _walk(
    top: Directory, after: list[bytes] | None, *, recursive: bool
) -> Iterator[tuple[list[bytes], Node]]:
    """Sorted, a directory before what is in it, from behind `after` on; without recursion."""
    stack: list[tuple[list[bytes], Node]] = [
        ([name], child) for name, child in sorted(top.children.items(), reverse=True)
    ]
    while stack:
        parts, node = stack.pop()
        if after is None or parts > after:
            yield parts, node
        wanted = after is None or parts >= after[: len(parts)]
        if recursive and wanted and isinstance(node, Directory) and node.mode & 0o400:
            below = sorted(node.children.items(), reverse=True)
            stack.extend(([*parts, name], child) for name, child in below)


async def _read(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    place = located(machine, request, "path")
    file = machine.tree.open_file(place.path, b"/")
    size, offset = len(file.data), request.number("offset", 0)
    rest = max(0, size - offset)
    limit, most = request.number_or_none("limit"), request.number_or_none("max")
    if limit is None and most is not None and rest > most:
        raise Refusal("too_large", f"the file has {rest} bytes, {most} were allowed")
    wanted = rest if limit is None else min(rest, limit)
    await stream.event("open", entry=entry(place.path, file))
    sent = 0
    while sent < wanted:
        start = offset + sent
        piece = bytes(file.data[start : start + min(_READ_BYTES, wanted - sent)])
        if not piece:
            break
        await stream.data(piece)
        sent += len(piece)
    return {"size": size, "bytes": sent}


async def _write(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    tree, path = machine.tree, request.raw("path")
    if request.flag("parents", True):
        _make_parents(machine, request, path)
    place = located(machine, request, "path", writes=True)
    before = place.node
    if isinstance(before, Directory):
        raise Refusal("is_directory", "Is a directory")
    if isinstance(before, Special):
        raise Refusal("not_regular", "not a regular file")
    if before is not None and not request.flag("overwrite", True):
        raise Refusal("exists", "File exists")
    old = before.mode if isinstance(before, File) else 0o644
    made = File(place.parent.volume, mode=request.number("mode", old, most=0o7777))
    try:
        while data := await stream.receive():
            made.write(len(made.data), data)
        tree.put(place, made)
    except BaseException:
        made.truncate()
        raise
    return entry(place.path, made)


def _make_parents(machine: Machine, request: Request, path: bytes) -> None:
    head = path.rstrip(b"/").rsplit(b"/", 1)[0] if b"/" in path.rstrip(b"/") else b""
    if head:
        check_new(machine, request, head)
        machine.tree.make_directories(head, machine.tree.workspace)


def check_new(machine: Machine, request: Request, path: bytes) -> None:
    """Refuse directories that would be made where the caller may not write."""
    missing = machine.tree.first_missing(path, machine.tree.workspace)
    if missing is not None:
        permit(request, missing.path, writes=True)


async def _mkdir(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    path, tree = request.raw("path"), machine.tree
    mode = request.number("mode", 0o755, most=0o7777)
    if request.flag("parents", True):
        _make_parents(machine, request, path)
    place = located(machine, request, "path")
    if place.node is None:
        permit(request, place.path, writes=True)
        tree.put(place, Directory(place.parent.volume, mode=mode))
        return entry(place.path, _existing(tree.find(place.path, b"/")))
    if not isinstance(place.node, Directory) or not request.flag("exist_ok", True):
        raise Refusal("exists", "File exists")
    return entry(place.path, place.node)


async def _move(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    tree = machine.tree
    source = located(machine, request, "source", follow=False, writes=True)
    node = _existing(source)
    target = located(machine, request, "destination", follow=False, writes=True)
    if _under(target.path, source.path) and isinstance(node, Directory):
        raise Refusal("invalid", "a directory cannot be moved into itself")
    if target.node is not None:
        if not request.flag("overwrite", False):
            raise Refusal("exists", "File exists")
        if isinstance(target.node, Directory):
            raise Refusal("is_directory", "Is a directory")
    _recharge(node, target.parent)
    tree.take(source)
    tree.put(target, node)
    tree.changed("moved", source.path, node)
    return entry(target.path, node)


def _recharge(node: Node, parent: Directory) -> None:
    """Count a tree on the volume it moves to."""
    stack, files = [node], []
    while stack:
        one = stack.pop()
        if isinstance(one, Directory):
            one.volume = parent.volume
            stack.extend(one.children.values())
        elif isinstance(one, File) and one.volume is not parent.volume:
            files.append(one)
    parent.volume.charge(sum(len(file.data) for file in files))
    for file in files:
        file.volume.charge(-len(file.data))
        file.volume = parent.volume


async def _remove(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    place = located(machine, request, "path", follow=False, writes=True)
    if place.node is None and request.flag("missing_ok", False):
        return {"removed": 0}
    return {"removed": machine.tree.remove(place, recursive=request.flag("recursive", False))}


async def _watch(machine: Machine, request: Request, stream: ServerStream) -> dict[str, Any]:
    place = located(machine, request, "path")
    _existing(place)
    recursive = request.flag("recursive", True)
    changes: asyncio.Queue[tuple[Change, bytes, bool] | None] = asyncio.Queue(_MAX_CHANGES)

    def note(change: Change, path: bytes, is_dir: bool) -> None:
        inside = _under(path, place.path)
        near = path.rsplit(b"/", 1)[0] == place.path or path == place.path
        if not inside or not (recursive or near):
            return
        if changes.full():
            return
        # The last free place is kept for saying that there was no more.
        changes.put_nowait(None if changes.qsize() == _MAX_CHANGES - 1 else (change, path, is_dir))

    machine.tree.watchers.append(note)
    try:
        await stream.event("watching")
        while True:
            found = await changes.get()
            if found is None:
                await stream.event("overflow")
            else:
                change, path, is_dir = found
                await stream.event("change", change=change, path=to_bytes_json(path), is_dir=is_dir)
    finally:
        machine.tree.watchers.remove(note)


FILE_VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "fs.stat": _stat,
        "fs.list": _list,
        "fs.read": _read,
        "fs.write": _write,
        "fs.mkdir": _mkdir,
        "fs.move": _move,
        "fs.remove": _remove,
        "fs.watch": _watch,
    }
)
