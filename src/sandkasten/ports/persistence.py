"""What is remembered: the ledger, workspaces, the journal, keys and stored files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.journal_rows import (
        AuditRow,
        ExecRow,
        KeyRow,
        SessionEnd,
        SessionRow,
        StoredFile,
    )
    from sandkasten.model.sandbox.cell_spec import Volume
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.workspace import Measure, StoredWorkspace


class Store(Protocol):
    """The ledger: a record is written before its resource is made and dropped after it is gone."""

    async def put(self, record: Record) -> None: ...
    async def get(self, sandbox_id: SandboxId) -> Record | None:
        """The record; None when there is none, or none that can be read."""
        ...

    async def find_key(self, session_key: str) -> Record | None: ...
    async def list(self) -> Sequence[Record]: ...
    async def drop(self, sandbox_id: SandboxId, record: Record | None = None) -> None:
        """Twice is fine. `record` is what the caller read of it; without it, it is read again."""
        ...

    async def corrupt(self) -> Sequence[SandboxId]:
        """Ids whose record is there and cannot be read."""
        ...

    def lock(self, name: str, *, wait_s: float = 30.0) -> AbstractAsyncContextManager[None]:
        """One holder of this name at a time, over all processes that share the ledger; else Busy.

        Ends with the process that holds it, however that ends.
        """
        ...


class Workspaces(Protocol):
    """Where named workspaces are kept. The caller holds the lock of the name it speaks of."""

    async def names(self) -> Sequence[str]: ...
    async def get(self, name: str) -> StoredWorkspace:
        """WorkspaceNotFound when there is none, WorkspaceDamaged when it cannot be used."""
        ...

    async def create(self, name: str, size_bytes: int, created_at: float) -> StoredWorkspace:
        """A new, empty one, or an error and nothing left behind; Conflict when it is there."""
        ...

    async def open(self, name: str, *, in_use: bool) -> Volume:
        """What a backend can show. Checked and repaired first, unless a living sandbox has it."""
        ...

    async def measure(self, name: str) -> Measure: ...
    async def copy(self, source: str, target: str, created_at: float) -> StoredWorkspace: ...
    async def resize(self, name: str, size_bytes: int) -> StoredWorkspace:
        """Only upwards; InvalidRequest otherwise."""
        ...

    async def remove(self, name: str) -> None:
        """Also one that is damaged."""
        ...

    async def half_made(self) -> Sequence[str]:
        """Names of which a crash left something that is no workspace."""
        ...

    async def clear(self, name: str) -> None:
        """Remove what `half_made` found of the name; the workspace itself stays."""
        ...


class Journal(Protocol):
    """What the daemon remembers of sessions and commands, and who did what.

    A call that returns is durable against the death of the process. `note_exec` alone is
    written behind: while its session lives the runner knows better, and nobody waits for it.
    A full disk raises QuotaExceeded, and the row is not there.
    """

    async def begin_session(self, row: SessionRow) -> None:
        """Before anything is made for it. Again, it replaces the row of one that has no end."""
        ...

    async def session_runs(self, session_id: str) -> None: ...
    async def end_session(
        self, session_id: str, status: SessionEnd, at: float, reason: str = ""
    ) -> None:
        """The first end counts; twice is fine. Its running commands are marked lost."""
        ...

    async def session(self, session_id: str) -> SessionRow | None: ...
    async def sessions(
        self,
        tenant: str | None,
        *,
        status: str | None = None,
        limit: int = 1000,
        before: str | None = None,
    ) -> Sequence[SessionRow]:
        """Newest first (created_at, then id); `before` is the last id of the page before, and
        nothing comes before an id that is not known."""
        ...

    async def open_sessions(self) -> Sequence[SessionRow]:
        """Those without an end."""
        ...

    def note_exec(self, row: ExecRow) -> None:
        """Insert or replace, soon; never raises and never blocks."""
        ...

    async def execs(
        self, session_id: str, *, limit: int = 256, before: str | None = None
    ) -> Sequence[ExecRow]:
        """Newest first (started_at, then id); `before` as for sessions."""
        ...

    async def exec(self, session_id: str, exec_id: str) -> ExecRow | None: ...
    async def audit(self, row: AuditRow) -> None:
        """`seq` is given by the journal."""
        ...

    async def audited(
        self,
        tenant: str | None,
        *,
        since_seq: int = 0,
        action: str | None = None,
        target: str | None = None,
        limit: int = 1000,
        newest: bool = False,
    ) -> Sequence[AuditRow]:
        """Oldest first, those after `since_seq`: the first `limit`, or the last with `newest`."""
        ...

    async def flush(self) -> None:
        """Everything noted so far is written."""
        ...

    async def prune(self, now: float) -> int:
        """Drop what is past its retention; how many rows went."""
        ...

    async def aclose(self) -> None: ...


class Keys(Protocol):
    """API keys, by hash. Quick to check: it happens on every request."""

    def check(self, hashed: bytes, now: float) -> KeyRow | None:
        """The living key with this sha256, or None."""
        ...

    def any_living(self, now: float) -> bool:
        """Whether there is a key at all that somebody could come with."""
        ...

    def any_made(self) -> bool:
        """Whether there ever was one, as far as is remembered."""
        ...

    async def add(self, row: KeyRow, hashed: bytes) -> None: ...
    async def revoke(self, key_id: str, at: float) -> KeyRow | None: ...
    async def list(self, tenant: str | None = None) -> Sequence[KeyRow]: ...


MaxStoredBytes: TypeAlias = "Callable[[], AbstractAsyncContextManager[int | None]]"
"""The most bytes that a tenant's files may take in all, valid during the block; None: any."""


class FileStore(Protocol):
    """Files that outlive sandboxes: staged into them, published out of them."""

    async def put(
        self,
        tenant: str,
        key: str | None,
        data: AsyncIterable[bytes],
        *,
        content_type: str = "application/octet-stream",
        expires_at: float | None = None,
        metadata: Mapping[str, str] | None = None,
        expect_sha256: str | None = None,
        overwrite: bool = False,
        max_stored_bytes: MaxStoredBytes | None = None,
    ) -> StoredFile:
        """Store all of it or nothing. Without a key it gets `f_<id>`; Conflict if a key is taken.

        QuotaExceeded if the tenant's stored files would take more than `max_stored_bytes`
        yields, when the bytes begin to arrive or while the file gets its key.
        """
        ...

    async def get(self, tenant: str, key: str) -> StoredFile:
        """FileNotFound when there is none."""
        ...

    def read(
        self, tenant: str, key: str, *, offset: int = 0, limit: int | None = None
    ) -> AbstractAsyncContextManager[tuple[StoredFile, AsyncIterator[bytes]]]: ...
    async def list(
        self, tenant: str, *, prefix: str = "", limit: int = 1000, after: str | None = None
    ) -> Sequence[StoredFile]: ...
    async def delete(self, tenant: str, key: str) -> None: ...
    async def usage(self, tenant: str) -> int:
        """Bytes."""
        ...

    async def prune(self, now: float) -> int: ...
