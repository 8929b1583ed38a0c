"""Collect the artifacts of a run: matched by glob, read within limits, omissions reported.

The tree belongs to hostile code: the names scanned, matches kept and bytes held are bounded, links
are not followed, and what is left out is listed with the reason.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from sandkasten.errors import FileError, NotFound, PolicyDenied
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.cell_spec import WORKSPACE
from sandkasten.model.sandbox.oneshot_values import Artifact

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from sandkasten.model.files.file_entries import FileContent, FileEntry, Listing
    from sandkasten.model.files.globs import Glob
    from sandkasten.model.sandbox.ledger_record import Record

# All artifacts of one run together are held in memory once.
MAX_ARTIFACTS_BYTES = 10 * 10_000_000
# Names scanned while matching; a run that creates more gets a warning.
MAX_LISTED = 100_000
# Matching runs on the event loop; yield to other tasks after this many names.
_NAMES_PER_TURN = 500


class WorkspaceFiles(Protocol):
    """The files of a run: those of a sandbox, or those that a run left behind."""

    async def list(
        self,
        sandbox_id: str,
        path: str = ...,
        *,
        recursive: bool = ...,
        limit: int = ...,
        cursor: str | None = ...,
    ) -> Listing: ...
    async def read(self, sandbox_id: str, path: str, *, limit: int | None = ...) -> FileContent: ...


@runtime_checkable
class Prefetches(Protocol):
    """Files that are read together, because each request takes long."""

    async def prefetch(self, entries: Sequence[FileEntry], limit: int) -> None:
        """Read at most `limit` bytes of each file, for `read`."""
        ...


@dataclass(frozen=True, slots=True)
class CollectedArtifacts:
    artifacts: tuple[Artifact, ...]
    warnings: tuple[str, ...]


async def collect_artifacts(
    files: WorkspaceFiles, record: Record, globs: tuple[Glob, ...], *, leave_out: str
) -> CollectedArtifacts:
    """Return the regular files of the workspace that match. `leave_out` is the code itself."""
    most = record.limits.artifacts
    entries: list[FileEntry] = []
    matched = looked_at = 0
    async for entry in _tree(files, record.id):
        looked_at += 1
        name = _name(entry)
        if entry.type == "file" and name != leave_out and any(g.matches(name) for g in globs):
            matched += 1
            if len(entries) < most:
                entries.append(entry)
        if looked_at % _NAMES_PER_TURN == 0:
            await asyncio.sleep(0)
        if looked_at >= MAX_LISTED:
            break
    warnings: list[str] = []
    if looked_at >= MAX_LISTED:
        warnings.append(f"only the first {looked_at} files were matched for artifacts")
    if matched > len(entries):
        warnings.append(f"{matched - len(entries)} more artifacts were left out (at most {most})")
    room, artifacts = MAX_ARTIFACTS_BYTES, list[Artifact]()
    if isinstance(files, Prefetches):
        await files.prefetch(_readable(entries, record.limits.artifact_bytes), room)
    for entry in entries:
        artifact = await _read(files, record, entry, room)
        room -= len(artifact.data or b"")
        artifacts.append(artifact)
    return CollectedArtifacts(tuple(artifacts), tuple(warnings))


def _readable(entries: Sequence[FileEntry], most: int) -> list[FileEntry]:
    """Return the files that fit the limits, as `_read` decides it."""
    room = MAX_ARTIFACTS_BYTES
    readable: list[FileEntry] = []
    for entry in entries:
        if entry.size <= min(most, room):
            room -= entry.size
            readable.append(entry)
    return readable


async def _tree(files: WorkspaceFiles, sandbox_id: str) -> AsyncIterator[FileEntry]:
    cursor: str | None = None
    while True:
        page = await files.list(sandbox_id, WORKSPACE, recursive=True, limit=5000, cursor=cursor)
        for entry in page.entries:
            yield entry
        cursor = page.next
        if cursor is None or not page.entries:
            return


async def _read(files: WorkspaceFiles, record: Record, entry: FileEntry, room: int) -> Artifact:
    name, most = _name(entry), record.limits.artifact_bytes
    if entry.size > most:
        return Artifact(name, entry.size, omitted_reason=f"larger than {most} bytes")
    if entry.size > room:
        return Artifact(
            name, entry.size, omitted_reason=f"all together over {MAX_ARTIFACTS_BYTES} bytes"
        )
    try:
        content = await files.read(record.id, entry.path, limit=min(most, room))
    except (FileError, NotFound, PolicyDenied) as exc:
        return Artifact(name, entry.size, omitted_reason=exc.message)
    if content.truncated:
        return Artifact(name, content.size, omitted_reason="it grew while it was read")
    return Artifact(name, content.size, data=content.data)


def _name(entry: FileEntry) -> str:
    return entry.path.removeprefix(WORKSPACE + "/")
