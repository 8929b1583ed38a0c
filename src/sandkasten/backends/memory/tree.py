"""A file tree in memory: files, directories, symbolic links, fifos, devices, modes, quotas.

Paths are bytes and resolved as a kernel would for the sandbox's user, who owns /workspace,
/tmp and the home and nothing else. Everything that cannot be done raises Refusal with the
protocol's code. Knows no requests and no processes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from sandkasten.backends.memory.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

USER = 1000
_MAX_LINKS = 40
_MAX_NAME = 255
_MAX_PATH = 4096


@dataclass(slots=True)
class Volume:
    """What a quota counts: the bytes of the files below one directory."""

    limit: int
    used: int = 0

    def charge(self, amount: int) -> None:
        if amount > 0 and self.used + amount > self.limit:
            raise Refusal("no_space", "No space left on device")
        self.used += amount


@dataclass(slots=True, eq=False)
class File:
    volume: Volume
    mode: int = 0o644
    uid: int = USER
    mtime: float = field(default_factory=time.time)
    data: bytearray = field(default_factory=bytearray)

    def write(self, offset: int, data: bytes) -> None:
        self.volume.charge(max(0, offset + len(data) - len(self.data)))
        if offset > len(self.data):
            self.data += bytes(offset - len(self.data))
        self.data[offset : offset + len(data)] = data
        self.mtime = time.time()

    def truncate(self) -> None:
        self.volume.charge(-len(self.data))
        self.data = bytearray()
        self.mtime = time.time()


@dataclass(slots=True, eq=False)
class Directory:
    volume: Volume
    mode: int = 0o755
    uid: int = USER
    mtime: float = field(default_factory=time.time)
    children: dict[bytes, Node] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Link:
    target: bytes
    mode: int = 0o777
    uid: int = USER
    mtime: float = field(default_factory=time.time)


@dataclass(slots=True, eq=False)
class Special:
    kind: Literal["fifo", "socket", "char", "block"]
    mode: int = 0o644
    uid: int = USER
    mtime: float = field(default_factory=time.time)


Node: TypeAlias = File | Directory | Link | Special
Change: TypeAlias = Literal["created", "modified", "deleted", "moved"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path leads: a name in a directory, and what has that name now, if anything."""

    parent: Directory
    name: bytes
    path: bytes
    """Absolute and real; the last component is itself a link only when not followed."""
    node: Node | None


class Tree:
    def __init__(self, *, workspace_bytes: int, tmp_bytes: int, home: bytes) -> None:
        self.workspace = b"/workspace"
        self.home = home
        self._system = Volume(limit=1 << 30)
        self.root = Directory(self._system, uid=0)
        self.volumes = {
            b"/workspace": Volume(workspace_bytes),
            b"/tmp": Volume(tmp_bytes),
            home: Volume(workspace_bytes),
        }
        self.watchers: list[Callable[[Change, bytes, bool], None]] = []
        for path, volume in self.volumes.items():
            self.plant(path, Directory(volume))
        self.plant(b"/work", Link(b"/workspace", uid=0))
        self.plant(b"/dev/null", Special("char", mode=0o666, uid=0))
        self.plant(b"/dev/zero", Special("char", mode=0o666, uid=0))
        self.plant(b"/etc/passwd", File(self._system, uid=0, data=bytearray(b"root:x:0:0::/:\n")))
        self.plant(b"/proc", Directory(self._system, uid=0))

    def plant(self, path: bytes, node: Node) -> None:
        """Put a node of the system itself in place, making what leads there."""
        where = self.root
        *parents, name = [part for part in path.split(b"/") if part]
        for part in parents:
            below = where.children.setdefault(part, Directory(self._system, uid=0))
            if not isinstance(below, Directory):
                raise ValueError(f"{path!r} runs through a file")
            where = below
        where.children[name] = node

    def program(self, path: bytes) -> None:
        self.plant(path, File(self._system, mode=0o755, uid=0))

    # ---- finding

    def find(self, path: bytes, cwd: bytes, *, follow: bool = True) -> Place:
        """Resolve all but perhaps the last component; the last may be missing."""
        if not path:
            raise Refusal("invalid", "the path is empty")
        if len(path) > _MAX_PATH:
            raise Refusal("name_too_long", "File name too long")
        rest = _parts(path if path[:1] == b"/" else cwd + b"/" + path)
        top = Place(self.root, b"", b"/", self.root)
        trail, place, links = [top], top, 0
        while rest:
            part = rest.pop()
            here = place.node
            if here is None:
                raise Refusal("not_found", "No such file or directory")
            if not isinstance(here, Directory):
                raise Refusal("not_directory", "Not a directory")
            if part == b"..":
                if len(trail) > 1:
                    trail.pop()
                place = trail[-1]
                continue
            if len(part) > _MAX_NAME:
                raise Refusal("name_too_long", "File name too long")
            if not here.mode & 0o100:
                raise Refusal("permission", "Permission denied")
            node = here.children.get(part)
            if isinstance(node, Link) and (follow or rest):
                links += 1
                if links > _MAX_LINKS:
                    raise Refusal("loop", "Too many levels of symbolic links")
                rest.extend(_parts(node.target))
                if node.target[:1] == b"/":
                    trail, place = [top], top
                continue
            spelled = (place.path if place is not top else b"") + b"/" + part
            place = Place(here, part, spelled, node)
            if isinstance(node, Directory):
                trail.append(place)
        return place

    def existing(self, path: bytes, cwd: bytes, *, follow: bool = True) -> tuple[Place, Node]:
        place = self.find(path, cwd, follow=follow)
        if place.node is None:
            raise Refusal("not_found", "No such file or directory")
        return place, place.node

    def directory(self, path: bytes, cwd: bytes) -> tuple[Place, Directory]:
        place, node = self.existing(path, cwd)
        if not isinstance(node, Directory):
            raise Refusal("not_directory", "Not a directory")
        return place, node

    # ---- changing

    def put(self, place: Place, node: Node) -> None:
        self._writable(place.parent)
        before = place.parent.children.get(place.name)
        if before is not None and before is not node:
            self._release(before)
        place.parent.children[place.name] = node
        place.parent.mtime = time.time()
        self.changed("modified" if before is not None else "created", place.path, node)

    def take(self, place: Place) -> Node:
        self._writable(place.parent)
        node = place.parent.children.pop(place.name)
        place.parent.mtime = time.time()
        return node

    def make_directories(self, path: bytes, cwd: bytes, *, mode: int = 0o755) -> Place:
        """`mkdir -p`; answers the last one."""
        place = self.find(b"/" if path[:1] == b"/" else cwd, b"/")
        for part in reversed(_parts(path)):
            place = self._below(place, part)
            if place.node is None:
                made = Directory(place.parent.volume, mode=mode)
                self.put(place, made)
                place = Place(place.parent, place.name, place.path, made)
            elif not isinstance(place.node, Directory):
                raise Refusal("not_directory", "Not a directory")
        return place

    def first_missing(self, path: bytes, cwd: bytes) -> Place | None:
        """The first component of a path that is not there, if one is not."""
        place = self.find(b"/" if path[:1] == b"/" else cwd, b"/")
        for part in reversed(_parts(path)):
            place = self._below(place, part)
            if place.node is None:
                return place
        return None

    def _below(self, place: Place, part: bytes) -> Place:
        """One step down; without walking from the root again where no link is in the way."""
        here = place.node
        if isinstance(here, Directory) and part != b".." and len(part) <= _MAX_NAME:
            node = here.children.get(part)
            if not isinstance(node, Link) and here.mode & 0o100:
                return Place(here, part, place.path.rstrip(b"/") + b"/" + part, node)
        return self.find(part, place.path)

    def remove(self, place: Place, *, recursive: bool) -> int:
        """How many entries went. Goes down without recursion: trees may be thousands deep."""
        node = place.node
        if node is None:
            raise Refusal("not_found", "No such file or directory")
        if node is self.root or place.path in self.volumes:
            raise Refusal("permission", "Permission denied")
        if isinstance(node, Directory) and node.children and not recursive:
            raise Refusal("not_empty", "Directory not empty")
        self.take(place)
        removed, stack = 0, [node]
        while stack:
            one = stack.pop()
            removed += 1
            if isinstance(one, Directory):
                stack.extend(one.children.values())
            self._release_one(one)
        self.changed("deleted", place.path, node)
        return removed

    def open_file(self, path: bytes, cwd: bytes) -> File:
        """A regular file to read."""
        _, node = self.existing(path, cwd)
        if isinstance(node, Directory):
            raise Refusal("is_directory", "Is a directory")
        if not isinstance(node, File):
            raise Refusal("not_regular", "not a regular file")
        if not node.mode & 0o400:
            raise Refusal("permission", "Permission denied")
        return node

    def create_file(self, place: Place, *, mode: int = 0o644) -> File:
        made = File(place.parent.volume, mode=mode)
        self.put(place, made)
        return made

    def changed(self, change: Change, path: bytes, node: Node) -> None:
        for watcher in list(self.watchers):
            watcher(change, path, isinstance(node, Directory))

    def _writable(self, directory: Directory) -> None:
        if directory.uid != USER or not directory.mode & 0o200:
            raise Refusal("permission", "Permission denied")

    def _release(self, node: Node) -> None:
        stack = [node]
        while stack:
            one = stack.pop()
            if isinstance(one, Directory):
                stack.extend(one.children.values())
            self._release_one(one)

    @staticmethod
    def _release_one(node: Node) -> None:
        if isinstance(node, File):
            node.volume.charge(-len(node.data))
            # A writer that still holds the file goes on uncharged, as with an unlinked file
            # whose space nobody sees.
            node.volume = Volume(limit=1 << 62)


def _parts(path: bytes) -> list[bytes]:
    """The components of a path that lead somewhere, last first."""
    return [part for part in reversed(path.split(b"/")) if part not in (b"", b".")]
