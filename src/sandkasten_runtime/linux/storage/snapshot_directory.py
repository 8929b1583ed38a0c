"""Snapshots on disk: `<root>/<id>/{snapshot.json, state.json, workspace, changes, tmp}`.

Each is made in a directory `.making-<id>`, which gets the id as its name when it is complete, and
loses its name first when it is removed. The files are copies of file systems of sandboxes: nothing
here mounts or follows what is in them. The caller holds the lock of an id.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from sandkasten.disk.atomic_file import sync_directory, write_file
from sandkasten.disk.cleanup import finish, in_own_thread, in_thread
from sandkasten.disk.free_space import check_free
from sandkasten.disk.os_errors import translated
from sandkasten.disk.tree_removal import remove_tree
from sandkasten.errors import (
    BackendUnavailable,
    QuotaExceeded,
    SnapshotDamaged,
    SnapshotNotFound,
    WorkspaceDamaged,
)
from sandkasten.model.json_codec import from_json, to_json
from sandkasten.model.sandbox.snapshot import (
    BegunSnapshot,
    SnapshotSpace,
    SnapshotState,
    StoredSnapshot,
    is_snapshot_id,
    unknown_snapshot,
)
from sandkasten_runtime.linux.storage import ext4, tree_copy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from threading import Event

    from sandkasten.model.sandbox.workspace import DiskRules

T = TypeVar("T")

_META: Final = "snapshot.json"
_STATE: Final = "state.json"
_BEGUN: Final = "begun.json"
_MAKING: Final = ".making-"
_REMOVING: Final = ".removing-"
# Each list reads all of these files; the largest parts are labels, network rules and names.
_MAX_META: Final = 128 * 1024
# The environment and the shells, with each character escaped; see `MAX_SHELL_STATE` of the runner.
_MAX_STATE: Final = 8 * 1024 * 1024
# e2fsck takes memory for each inode, and waits for the disk for minutes.
_CHECKED_AT_ONCE: Final = 2


class SnapshotDirectory:
    """Implements `ports.SnapshotStore`. Safe for several threads and processes, one per id."""

    def __init__(self, root: Path, *, disk: DiskRules | None = None) -> None:
        self._root = root
        self._min_free = 0 if disk is None else disk.min_free_bytes
        self._checking = asyncio.Semaphore(_CHECKED_AT_ONCE)

    async def all(self) -> Sequence[StoredSnapshot]:
        return await asyncio.to_thread(self._all)

    async def get(self, snapshot_id: str) -> StoredSnapshot:
        return await asyncio.to_thread(self._get, snapshot_id)

    async def state(self, snapshot_id: str) -> SnapshotState:
        return await asyncio.to_thread(self._state, snapshot_id)

    async def space(self) -> Sequence[SnapshotSpace]:
        return await asyncio.to_thread(self._space)

    async def begin(self, begun: BegunSnapshot) -> str:
        return await finish(in_thread(self._begin, begun))

    async def check(self, stored: StoredSnapshot, stop: Event) -> int:
        async with self._checking:
            return await finish(in_own_thread(self._check, stored, stop), hurry=stop.set)

    async def grow(self, begun: BegunSnapshot) -> None:
        await finish(in_thread(self._mark, begun))

    async def complete(self, stored: StoredSnapshot) -> StoredSnapshot:
        return await finish(in_own_thread(self._complete, stored))

    async def begun(self) -> Sequence[BegunSnapshot]:
        return await asyncio.to_thread(self._begun)

    async def clear(self, snapshot_id: str) -> None:
        await finish(in_thread(self._clear, snapshot_id))

    async def remove(self, snapshot_id: str) -> None:
        await finish(in_thread(self._remove, snapshot_id))

    # ---- blocking, in a thread

    def _entries(self) -> list[str]:
        with translated("read the snapshots", BackendUnavailable):
            try:
                return sorted(os.listdir(self._root))
            except FileNotFoundError:
                return []

    def _all(self) -> list[StoredSnapshot]:
        stored = []
        for name in self._entries():
            if is_snapshot_id(name):
                # Removed meanwhile, or damaged: that is reported when it is named.
                with suppress(SnapshotDamaged, SnapshotNotFound):
                    stored.append(self._get(name))
        return sorted(stored, key=lambda snapshot: (snapshot.created_at, snapshot.id))

    def _get(self, snapshot_id: str) -> StoredSnapshot:
        if not is_snapshot_id(snapshot_id):
            raise unknown_snapshot(snapshot_id)
        stored = self._read(snapshot_id, _META, StoredSnapshot, _MAX_META)
        if stored.id != snapshot_id:
            raise _damaged(snapshot_id, f"{_META} belongs to another snapshot")
        # Where it is now, also if the data directory was moved.
        place = os.fspath(self._root / snapshot_id)
        return replace(stored, files=replace(stored.files, path=place))

    def _state(self, snapshot_id: str) -> SnapshotState:
        return self._read(snapshot_id, _STATE, SnapshotState, _MAX_STATE)

    def _read(self, snapshot_id: str, name: str, kind: type[T], limit: int) -> T:
        place = self._root / snapshot_id
        try:
            with (place / name).open("rb") as file:
                return from_json(kind, json.loads(file.read(limit + 1)))
        except FileNotFoundError as exc:
            if not place.is_dir():
                raise unknown_snapshot(snapshot_id) from exc
            raise _damaged(snapshot_id, f"{name} is missing") from exc
        except (OSError, ValueError, RecursionError) as exc:
            raise _damaged(snapshot_id, f"{name} cannot be used: {exc}") from exc

    def _space(self) -> list[SnapshotSpace]:
        # First: one that is completed meanwhile is found under its id.
        there = {
            begun.id: SnapshotSpace(begun.id, begun.tenant, begun.size_bytes)
            for begun in self._begun()
        }
        for name in self._entries():
            if is_snapshot_id(name):
                with suppress(SnapshotNotFound):
                    there[name] = self._space_of(name)
        return list(there.values())

    def _space_of(self, snapshot_id: str) -> SnapshotSpace:
        try:
            stored = self._get(snapshot_id)
        except SnapshotDamaged:
            place = self._root / snapshot_id
            size, tenant = _blocks(place), None
            with suppress(OSError, ValueError, RecursionError, AttributeError):
                with (place / _META).open("rb") as file:
                    raw = json.loads(file.read(_MAX_META + 1))
                if raw.get("id") == snapshot_id and isinstance(raw.get("tenant"), str):
                    tenant = raw["tenant"]
            with translated("read the snapshots", BackendUnavailable):
                try:
                    made_at = place.stat().st_mtime
                except FileNotFoundError as exc:
                    raise unknown_snapshot(snapshot_id) from exc
            return SnapshotSpace(snapshot_id, tenant, size, made_at, damaged=True)
        return SnapshotSpace(snapshot_id, stored.tenant, stored.size_bytes, stored.created_at)

    def _begin(self, begun: BegunSnapshot) -> str:
        half = self._root / (_MAKING + begun.id)
        attempt = "make a snapshot"
        with translated(attempt, BackendUnavailable):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            need = 0 if self._shares else begun.size_bytes
            check_free(self._root, self._min_free + need, attempt)
            half.mkdir(mode=0o700)
        # Before the sandbox is stopped: a process that finds it lets the sandbox run on.
        self._mark(begun)
        return os.fspath(half)

    def _mark(self, begun: BegunSnapshot) -> None:
        with translated("make a snapshot", BackendUnavailable):
            path = self._root / (_MAKING + begun.id) / _BEGUN
            # Not durable, because no sandbox outlives a crash of the machine.
            write_file(path, json.dumps(to_json(begun)).encode(), durable=False)

    def _check(self, stored: StoredSnapshot, stop: Event) -> int:
        with translated("make a snapshot", BackendUnavailable):
            for volume in stored.files.volumes:
                try:
                    # Files that were deleted and open were still in it, and it was mounted.
                    ext4.check(Path(stored.files.path, volume.name), stop)
                except WorkspaceDamaged as exc:
                    raise SnapshotDamaged(
                        f"the copy of sandbox {stored.sandbox_id} is damaged: {exc.message[:200]}",
                        hint="its own file system may be damaged: copy its files, and create a new "
                        "sandbox",
                        snapshot=stored.id,
                    ) from exc
        return _blocks(Path(stored.files.path))

    def _complete(self, stored: StoredSnapshot) -> StoredSnapshot:
        half = self._root / (_MAKING + stored.id)
        with translated("make a snapshot", BackendUnavailable):
            for entry in os.scandir(half):
                _sync(entry.path)
            check_free(self._root, self._min_free, "make a snapshot")
            complete = replace(
                stored,
                size_bytes=_blocks(half),
                files=replace(stored.files, path=os.fspath(self._root / stored.id)),
            )
            write_file(half / _STATE, _encoded(complete.state, _MAX_STATE))
            meta = replace(complete, state=SnapshotState())
            write_file(half / _META, _encoded(meta, _MAX_META))
            (half / _BEGUN).unlink()
            half.rename(self._root / stored.id)
            sync_directory(self._root)
        return complete

    def _begun(self) -> list[BegunSnapshot]:
        begun = []
        for name in self._entries():
            snapshot_id = name.removeprefix(_MAKING)
            if snapshot_id == name:
                snapshot_id = name.removeprefix(_REMOVING).partition("-")[0]
            if snapshot_id == name or not is_snapshot_id(snapshot_id):
                continue
            try:
                raw = json.loads((self._root / name / _BEGUN).read_bytes())
                begun.append(from_json(BegunSnapshot, raw))
            except (OSError, ValueError):
                begun.append(BegunSnapshot(snapshot_id, "", None, _blocks(self._root / name)))
        return begun

    def _clear(self, snapshot_id: str) -> None:
        with translated("remove a snapshot", BackendUnavailable):
            for name in self._entries():
                half = name == _MAKING + snapshot_id
                if half or name.startswith(f"{_REMOVING}{snapshot_id}-"):
                    with suppress(FileNotFoundError):
                        remove_tree(self._root / name)

    def _remove(self, snapshot_id: str) -> None:
        if not is_snapshot_id(snapshot_id):
            raise unknown_snapshot(snapshot_id)
        removing = self._root / f"{_REMOVING}{snapshot_id}-{secrets.token_hex(4)}"
        with translated("remove a snapshot", BackendUnavailable):
            try:
                (self._root / snapshot_id).rename(removing)
            except FileNotFoundError as exc:
                raise unknown_snapshot(snapshot_id) from exc
            sync_directory(self._root)
            remove_tree(removing)

    @cached_property
    def _shares(self) -> bool:
        with translated("make a snapshot", BackendUnavailable):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            return tree_copy.can_share(self._root)


def _sync(path: str) -> None:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _blocks(place: Path) -> int:
    """Return what the files of a directory take on the disk; 0 if it is removed meanwhile."""
    with translated("read the snapshots", BackendUnavailable), suppress(FileNotFoundError):
        entries = os.scandir(place)
        return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in entries)
    return 0


def _encoded(value: object, limit: int) -> bytes:
    raw = json.dumps(to_json(value)).encode()
    if len(raw) > limit:
        raise QuotaExceeded(
            f"the metadata of the snapshot has {len(raw)} bytes, and at most {limit} are stored",
            hint="use fewer or shorter variables, labels or network rules",
            quota="snapshot_metadata",
            limit=limit,
            used=len(raw),
        )
    return raw


def _damaged(snapshot_id: str, what: str) -> SnapshotDamaged:
    return SnapshotDamaged(
        f"snapshot {snapshot_id} is damaged: {what[:200]}",
        hint="remove it: sandkasten snapshot rm",
        snapshot=snapshot_id,
    )
