"""Named workspaces on disk: `<root>/<name>/{meta.json, volume | tree}`.

As root the volume is an ext4 image of its own size; an ordinary user, who cannot mount one, gets a
directory without a size limit. Each is made in a temporary directory that gets its name when it is
complete, and loses its name first when it is removed, so a crash leaves something that `half_made`
lists. The caller holds the lock of a name; which sandboxes use a workspace is not known here. Of a
workspace that a backend keeps, only the metadata is here.
"""

from __future__ import annotations

import asyncio
import errno
import json
import math
import os
import secrets
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final, TypeVar

from sandkasten.disk import free_space
from sandkasten.disk.atomic_file import sync_directory, write_file
from sandkasten.disk.cleanup import finish, in_thread
from sandkasten.disk.free_space import check_free
from sandkasten.disk.os_errors import translated
from sandkasten.disk.tree_removal import remove_tree
from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    Cancelled,
    Conflict,
    InvalidRequest,
    QuotaExceeded,
    WorkspaceDamaged,
    WorkspaceNotFound,
)
from sandkasten.model.sandbox.cell_spec import Volume
from sandkasten.model.sandbox.workspace import (
    Measure,
    StoredWorkspace,
    VolumeKind,
    checked_kept_name,
    is_kept_name,
    plain_name,
)
from sandkasten_runtime.linux.storage import ext4, tree_copy, workspace_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from sandkasten.model.sandbox.workspace import DiskRules

T = TypeVar("T")

_META: Final = "meta.json"
_FILE: Final = "volume"
_TREE: Final = "tree"
_MAKING: Final = ".making-"
_REMOVING: Final = ".removing-"
_MAX_META: Final = 64 * 1024
# The last unmount writes back what is in memory before the loop device is released.
_SETTLE_S: Final = 20.0


class WorkspaceDirectory:
    """Implements `ports.Workspaces`. Safe for several threads and processes, one per name."""

    def __init__(
        self, root: Path, *, images: bool | None = None, disk: DiskRules | None = None
    ) -> None:
        """Without `disk`, images are sparse and the whole disk may be used."""
        self._root = root
        self._images = os.geteuid() == 0 if images is None else images
        self._reserves = disk is not None and disk.reserve != "none"
        self._min_free = 0 if disk is None else disk.min_free_bytes

    async def names(self) -> Sequence[str]:
        return await asyncio.to_thread(self._names)

    async def get(self, name: str) -> StoredWorkspace:
        return await asyncio.to_thread(self._get, name)

    async def create(
        self, name: str, size_bytes: int, created_at: float, *, keeper: str = ""
    ) -> StoredWorkspace:
        return await _finished(self._create, name, size_bytes, created_at, keeper)

    async def open(self, name: str, *, in_use: bool) -> Volume:
        return await _finished(self._open, name, in_use)

    async def measure(self, name: str) -> Measure:
        return await _finished(self._measure, name)

    async def copy(self, source: str, target: str, created_at: float) -> StoredWorkspace:
        return await _finished(self._copy, source, target, created_at)

    async def resize(self, name: str, size_bytes: int) -> StoredWorkspace:
        return await _finished(self._resize, name, size_bytes)

    async def remove(self, name: str) -> None:
        await _finished(self._remove, name)

    async def half_made(self) -> Sequence[str]:
        return await asyncio.to_thread(self._half_made)

    async def clear(self, name: str) -> None:
        await _finished(self._clear, name)

    # ---- blocking, in a thread; `stop` is set when the caller no longer waits

    def _names(self) -> list[str]:
        return sorted(name for name in self._entries() if not name.startswith("."))

    def _half_made(self) -> list[str]:
        return sorted(
            {unfinished for name in self._entries() if (unfinished := _begun(name)) is not None}
        )

    def _entries(self) -> list[str]:
        try:
            with os.scandir(self._root) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise _unusable(self._root, exc) from exc
        return [name for name in names if _begun(name) is not None or is_kept_name(name)]

    def _get(self, name: str) -> StoredWorkspace:
        place = self._place(name)
        try:
            with (place / _META).open("rb") as file:
                stored = _decoded(name, file.read(_MAX_META + 1))
        except FileNotFoundError as exc:
            if not place.is_dir():
                raise WorkspaceNotFound(
                    f"there is no workspace named {plain_name(name)}",
                    hint="list them with: sandkasten workspace ls",
                    workspace=plain_name(name),
                ) from exc
            raise _damaged(name, f"{_META} is missing") from exc
        except (OSError, ValueError, RecursionError) as exc:
            raise _damaged(name, f"{_META} cannot be used: {exc}") from exc
        if not _content(place, stored).exists():
            raise _damaged(name, f"its {_content(place, stored).name} is missing")
        return stored

    def _create(
        self, name: str, size_bytes: int, created_at: float, keeper: str, stop: threading.Event
    ) -> StoredWorkspace:
        if keeper:
            stored = StoredWorkspace(name, "volume", size_bytes, created_at, keeper)
            with self._making(stored):
                return stored
        kind: VolumeKind = "image" if self._images else "directory"
        size = max(size_bytes, ext4.MIN_BYTES) if self._images else size_bytes
        stored = StoredWorkspace(name, kind, size, created_at)
        with self._making(stored) as place:
            check_free(place, self._min_free, f"make workspace {plain_name(name)}")
            if kind == "image":
                ext4.make(place / _FILE, size, stop)
                self._reserve(name, place / _FILE, size)
            else:
                (place / _TREE).mkdir(mode=0o700)
        return stored

    def _open(self, name: str, in_use: bool, stop: threading.Event) -> Volume:
        stored = self._get(name)
        if stored.kind == "volume":
            return Volume(name, "volume")
        content = _content(self._place(name), stored)
        if stored.kind == "image" and not in_use:
            self._settle(name, content, stop)
            if not ext4.look(content).clean:
                ext4.check(content, stop)
        # One that was made without it gets its space now.
        reserved = stored.kind == "image" and self._reserve(name, content, stored.size_bytes)
        return Volume(os.fspath(content), stored.kind, reserved)

    def _measure(self, name: str, stop: threading.Event) -> Measure:
        stored = self._get(name)
        content = _content(self._place(name), stored)
        if stored.kind == "image":
            allocated = content.stat().st_blocks * 512
            return Measure(ext4.look(content).used_bytes, allocated)
        if stored.kind == "volume":
            return Measure(None, None)
        used = allocated = 0
        seen: set[tuple[int, int]] = set()
        for entry in tree_copy.walk(content):
            if stop.is_set():
                break
            if (entry.st_dev, entry.st_ino) not in seen:
                seen.add((entry.st_dev, entry.st_ino))
                used += entry.st_size
                allocated += entry.st_blocks * 512
        return Measure(used, allocated)

    def _copy(
        self, source: str, target: str, created_at: float, stop: threading.Event
    ) -> StoredWorkspace:
        original = self._get(source)
        content = _content(self._place(source), original)
        stored = replace(original, name=target, created_at=created_at)
        if original.kind == "image":
            self._settle(source, content, stop)
        with self._making(stored) as place:
            check_free(place, self._min_free, f"make workspace {plain_name(target)}")
            if original.kind == "image":
                tree_copy.copy_sparse(content, place / _FILE, stop)
                self._reserve(target, place / _FILE, original.size_bytes)
            elif original.kind == "directory":
                tree_copy.copy_tree(content, place / _TREE, stop)
        return stored

    def _resize(self, name: str, size_bytes: int, stop: threading.Event) -> StoredWorkspace:
        stored = self._get(name)
        if size_bytes < stored.size_bytes:
            raise InvalidRequest(
                f"workspace {plain_name(name)} has {stored.size_bytes} bytes "
                "and cannot be made smaller",
                hint="make a new one of that size and copy what you need",
                field="workspace_mb",
            )
        place = self._place(name)
        content = _content(place, stored)
        grown = replace(stored, size_bytes=size_bytes)
        with translated(f"enlarge workspace {plain_name(name)}", BackendUnavailable):
            if stored.kind == "image":
                self._settle(name, content, stop)
                self._reserve(name, content, size_bytes)
                ext4.grow(content, size_bytes, stop)
            _write_meta(place, grown)
        return grown

    def _remove(self, name: str, stop: threading.Event) -> None:
        place = self._place(name)
        removing = self._root / f"{_REMOVING}{secrets.token_hex(4)}-{name}"
        with translated(f"delete workspace {plain_name(name)}", BackendUnavailable):
            try:
                place.rename(removing)
            except FileNotFoundError as exc:
                raise WorkspaceNotFound(
                    f"there is no workspace named {plain_name(name)}",
                    hint="list them with: sandkasten workspace ls",
                    workspace=plain_name(name),
                ) from exc
            sync_directory(self._root)
            _remove(removing)

    def _clear(self, name: str, stop: threading.Event) -> None:
        for entry in self._entries():
            if _begun(entry) == name:
                _remove(self._root / entry)

    def _place(self, name: str) -> Path:
        # Checked here too: here a name becomes a path.
        return self._root / checked_kept_name(name)

    @contextmanager
    def _making(self, stored: StoredWorkspace) -> Iterator[Path]:
        """Yield a directory that gets its name at the end, or is removed."""
        place = self._place(stored.name)
        half = self._root / f"{_MAKING}{secrets.token_hex(4)}-{stored.name}"
        with translated(f"make workspace {plain_name(stored.name)}", BackendUnavailable):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            half.mkdir(mode=0o700)
            try:
                yield half
                _write_meta(half, stored)
                _rename_new(half, place)
                sync_directory(self._root)
            except BaseException:
                _remove(half)
                raise

    def _reserve(self, name: str, image: Path, size: int) -> bool:
        """Take the space of an image. Return False if it is not to be or cannot be reserved."""
        if not self._reserves:
            return False
        attempt = f"reserve the space of workspace {plain_name(name)}"
        with translated(attempt, BackendUnavailable), image.open("rb+") as file:
            before = os.fstat(file.fileno()).st_size
            try:
                return free_space.reserve(file.fileno(), size, self._min_free, attempt)
            except QuotaExceeded:
                # What was taken beyond its end is given back.
                file.truncate(before)
                raise

    def _settle(self, name: str, volume: Path, stop: threading.Event) -> None:
        """Wait for the last unmount: a mounted image must be neither checked nor copied."""
        deadline = time.monotonic() + _SETTLE_S
        while workspace_image.attached(os.fspath(volume)):
            if time.monotonic() > deadline:
                raise Busy(
                    f"workspace {plain_name(name)} is still attached to a loop device",
                    hint="a sandbox that is ending may still be writing; try again in a moment",
                    workspace=plain_name(name),
                )
            if stop.wait(0.01):
                raise Cancelled("the request was cancelled", hint="try again")


async def _finished(work: Callable[..., T], *args: object) -> T:
    """Run it in a thread and wait for its end; if cancelled, ask it to stop and wait.

    The caller holds the lock of a name and releases it as soon as this returns.
    """
    stop = threading.Event()
    return await finish(in_thread(work, *args, stop), hurry=stop.set)


def _rename_new(half: Path, place: Path) -> None:
    """Rename only to a name that is free, even if another process tries at the same time."""
    try:
        if place.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        half.rename(place)
    except OSError as exc:
        if exc.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        raise Conflict(
            f"there is a workspace named {plain_name(place.name)} already",
            hint="choose another name, or delete it first",
            workspace=plain_name(place.name),
        ) from exc


def _begun(entry: str) -> str | None:
    """Return the workspace that a half-made or half-removed directory belongs to."""
    for prefix in (_MAKING, _REMOVING):
        if entry.startswith(prefix):
            _, _, name = entry.removeprefix(prefix).partition("-")
            return name if is_kept_name(name) else None
    return None


def _content(place: Path, stored: StoredWorkspace) -> Path:
    if stored.kind == "volume":
        return place / _META
    return place / (_FILE if stored.kind == "image" else _TREE)


def _decoded(name: str, data: bytes) -> StoredWorkspace:
    if len(data) > _MAX_META:
        raise ValueError("it is too large")
    raw = json.loads(data)
    if not isinstance(raw, dict) or raw.get("name") != name:
        raise ValueError("it belongs to another workspace")
    size, created, kind = raw.get("size_bytes"), raw.get("created_at"), raw.get("kind")
    if kind not in ("image", "directory", "volume"):
        raise ValueError("its kind is unknown")
    keeper = raw.get("keeper", "")
    if not isinstance(keeper, str) or bool(keeper) != (kind == "volume"):
        raise ValueError("invalid `keeper` in workspace metadata")
    if isinstance(size, bool) or not isinstance(size, int) or size <= 0:
        raise ValueError("invalid `size_bytes` in workspace metadata")
    if (
        isinstance(created, bool)
        or not isinstance(created, int | float)
        or not math.isfinite(created)
    ):
        raise ValueError("invalid `created_at` in workspace metadata")
    return StoredWorkspace(name, kind, size, float(created), keeper)


def _write_meta(place: Path, stored: StoredWorkspace) -> None:
    write_file(place / _META, json.dumps(asdict(stored)).encode())


def _remove(tree: Path) -> None:
    with suppress(FileNotFoundError):
        remove_tree(tree)


def _damaged(name: str, what: str) -> WorkspaceDamaged:
    return WorkspaceDamaged(
        f"workspace {plain_name(name)} is damaged: {what[:200]}",
        hint="restore the file beside its volume, or delete the workspace",
        workspace=plain_name(name),
    )


def _unusable(root: Path, exc: OSError) -> BackendUnavailable:
    return BackendUnavailable(
        f"the workspaces in {root} cannot be listed: {exc.strerror or exc}",
        hint="check the permissions of the data directory",
    )
