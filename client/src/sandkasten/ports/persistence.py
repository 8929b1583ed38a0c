"""Persistent state: the ledger, workspaces, the journal, the audit log, keys and stored files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from threading import Event

    from sandkasten.model.access.preview_links import PreviewTarget, SandboxPreviews
    from sandkasten.model.access.stored_secrets import OpenSecret, Secret, SecretRequest
    from sandkasten.model.access.tenancy import TenantTally
    from sandkasten.model.audit_records import AuditFilter, AuditHead, AuditReport, AuditRow
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.journal_rows import (
        ExecRow,
        KeyRow,
        RecordingInfo,
        SessionEnd,
        SessionRow,
        StoredFile,
    )
    from sandkasten.model.sandbox.cell_spec import Volume
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.readiness import Requirement
    from sandkasten.model.sandbox.snapshot import (
        BegunSnapshot,
        SnapshotSpace,
        SnapshotState,
        StoredSnapshot,
    )
    from sandkasten.model.sandbox.workspace import Measure, StoredWorkspace


class Store(Protocol):
    """The ledger: a record is written before its resource is created and dropped after its
    removal.
    """

    async def put(self, record: Record) -> None: ...
    async def get(self, sandbox_id: SandboxId) -> Record | None:
        """Return the record, or None if there is none or it cannot be read."""
        ...

    async def find_key(self, session_key: str) -> Record | None: ...
    async def list(self) -> Sequence[Record]:
        """Return all records, oldest first. While nothing has changed, an implementation may
        return the same object again, which must not be modified.
        """
        ...

    async def drop(self, sandbox_id: SandboxId, record: Record | None = None) -> None:
        """Remove a record. Twice is fine. `record` is the caller's copy; without it, it is read
        again.
        """
        ...

    async def corrupt(self) -> Sequence[SandboxId]:
        """Return the ids whose record exists but cannot be read."""
        ...

    def lock(self, name: str, *, wait_s: float = 30.0) -> AbstractAsyncContextManager[None]:
        """Hold this name exclusively across all processes that share the ledger; else raise Busy.

        The lock ends with the process that holds it, however that ends.
        """
        ...


@runtime_checkable
class HasRequirements(Protocol):
    """A ledger that needs something outside of this process, for example a database."""

    async def requirements(self) -> Sequence[Requirement]:
        """Return the lines of `doctor`. What is unavailable is a line and not an error."""
        ...


@runtime_checkable
class TalliesTenants(Protocol):
    """A ledger that counts without a look at each record."""

    async def tally(self, tenant: str) -> TenantTally:
        """Count the sandboxes of a tenant, without those that are lost or internal."""
        ...


@runtime_checkable
class HasExtras(Protocol):
    """A ledger whose settings name something that sandboxes can do without, such as a bucket."""

    async def extras(self) -> Sequence[Requirement]:
        """Return further lines of `doctor`, none of them required. May write for a trial."""
        ...


@runtime_checkable
class DividesUpkeep(Protocol):
    """A ledger of daemons that can reach the same sandboxes; each is responsible for a part."""

    def shares(self, backend: str) -> bool:
        """Return whether every daemon can reach the sandboxes of the backend."""
        ...

    def tends(self, sandbox_id: str) -> bool:
        """Return whether a sandbox of such a backend is leased to this process now."""
        ...

    def fenced(self, sandbox_id: str) -> AbstractContextManager[None]:
        """Refuse writes of the block with Busy if another daemon has taken the sandbox over since
        the block began.
        """
        ...


class Secrets(Protocol):
    """Secrets by tenant and name, encrypted at rest. Names and requests were checked."""

    async def put(self, tenant: str, request: SecretRequest) -> Secret:
        """Store a secret, or replace the one with this name."""
        ...

    async def list(self, tenant: str) -> Sequence[Secret]: ...
    async def remove(self, tenant: str, name: str) -> None:
        """Raise NotFound if there is none."""
        ...

    async def open(self, tenant: str, names: Sequence[str]) -> Sequence[OpenSecret]:
        """Return secrets with their values; NotFound names the first that is missing."""
        ...


class Workspaces(Protocol):
    """Storage of named workspaces. The caller holds the lock of the name it passes."""

    async def names(self) -> Sequence[str]: ...
    async def get(self, name: str) -> StoredWorkspace:
        """Raise WorkspaceNotFound if there is none, WorkspaceDamaged if it cannot be used."""
        ...

    async def create(
        self, name: str, size_bytes: int, created_at: float, *, keeper: str = ""
    ) -> StoredWorkspace:
        """Create an empty workspace, or raise and leave nothing behind. Raise Conflict if it
        exists. With `keeper`, that backend has its files, and only its metadata is stored.
        """
        ...

    async def open(self, name: str, *, in_use: bool) -> Volume:
        """Return the volume for a backend. Checked and repaired first, unless a running sandbox
        uses it.
        """
        ...

    async def measure(self, name: str) -> Measure: ...
    async def copy(self, source: str, target: str, created_at: float) -> StoredWorkspace:
        """Copy a workspace; of one that a backend keeps, its metadata."""
        ...

    async def resize(self, name: str, size_bytes: int) -> StoredWorkspace:
        """Grow the workspace. Raise InvalidRequest for a smaller size."""
        ...

    async def remove(self, name: str) -> None:
        """Remove the workspace, even if it is damaged."""
        ...

    async def half_made(self) -> Sequence[str]:
        """Return the names for which a crash left an incomplete workspace."""
        ...

    async def clear(self, name: str) -> None:
        """Remove the leftovers that `half_made` reported for the name; the workspace itself
        stays.
        """
        ...


class SnapshotStore(Protocol):
    """Storage of snapshots. The caller holds the lock of the id it passes."""

    async def all(self) -> Sequence[StoredSnapshot]:
        """Return all snapshots that can be used, oldest first."""
        ...

    async def get(self, snapshot_id: str) -> StoredSnapshot:
        """Raise SnapshotNotFound if there is none, SnapshotDamaged if it cannot be used."""
        ...

    async def begin(self, begun: BegunSnapshot) -> str:
        """Return the path of a new, empty directory for its files. Raise QuotaExceeded if the disk
        has no room for it.
        """
        ...

    async def state(self, snapshot_id: str) -> SnapshotState:
        """Return what `all` and `get` leave out. Raise as `get` does."""
        ...

    async def space(self) -> Sequence[SnapshotSpace]:
        """Return what takes space, in no order: also what is being made, removed or damaged."""
        ...

    async def check(self, stored: StoredSnapshot, stop: Event) -> int:
        """Check the files of a snapshot that is being made, so that a sandbox can be created from
        them, and return how many bytes they take. Raise SnapshotDamaged.
        """
        ...

    async def grow(self, begun: BegunSnapshot) -> None:
        """Change the size of a snapshot that is being made."""
        ...

    async def complete(self, stored: StoredSnapshot) -> StoredSnapshot:
        """Give a checked snapshot its id: from now on it exists. Return it with its size. Raise
        QuotaExceeded if its metadata is too large.
        """
        ...

    async def begun(self) -> Sequence[BegunSnapshot]:
        """Return the snapshots that are being made, or of which a crash left something."""
        ...

    async def clear(self, snapshot_id: str) -> None:
        """Remove what `begun` returned for the id; a complete snapshot stays."""
        ...

    async def remove(self, snapshot_id: str) -> None:
        """Remove a snapshot. Raise SnapshotNotFound."""
        ...


class Journal(Protocol):
    """The daemon's records of sessions and commands.

    A call that returns survives the death of the process. Only `note_exec` is written later: while
    its session lives the runner knows better, and no caller waits for it. A full disk raises
    QuotaExceeded, and the row is not written.
    """

    async def begin_session(self, row: SessionRow) -> None:
        """Record a session before anything is created for it. Replaces a row that has no end."""
        ...

    async def session_runs(self, session_id: str) -> None: ...
    async def end_session(
        self, session_id: str, status: SessionEnd, at: float, reason: str = ""
    ) -> None:
        """Record the end of a session; the first end counts, twice is fine. Running commands
        are marked lost.
        """
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
        """Return sessions, newest first (created_at, then id); `before` is the last id of the
        previous page. An unknown id gives an empty page.
        """
        ...

    async def open_sessions(self) -> Sequence[SessionRow]:
        """Return the sessions without an end."""
        ...

    def note_exec(self, row: ExecRow) -> None:
        """Insert or replace a command soon; never raises and never blocks."""
        ...

    async def execs(
        self, session_id: str, *, limit: int = 256, before: str | None = None
    ) -> Sequence[ExecRow]:
        """Return commands, newest first (started_at, then id); `before` as for sessions."""
        ...

    async def exec(self, session_id: str, exec_id: str) -> ExecRow | None: ...
    async def note_traffic(self, session_id: str, tenant: str, day: int, total: int) -> None:
        """Record the bytes that a session has exchanged since it was created. What is more than
        on earlier days belongs to this day; less than before changes nothing.
        """
        ...

    async def traffic(self, tenant: str, day: int) -> int:
        """Return the bytes that the sessions of a tenant exchanged on a day."""
        ...

    async def keep_audit_head(self, head: AuditHead) -> None:
        """Remember the newest record of the audit log, so that a missing end is noticed."""
        ...

    async def audit_head(self) -> AuditHead | None: ...
    async def flush(self) -> None:
        """Write everything recorded so far."""
        ...

    async def prune(self, now: float) -> int:
        """Drop what is past its retention. Return the number of rows."""
        ...

    async def aclose(self) -> None: ...


class OutputRecording(Protocol):
    """The recording of one command or terminal. Never raises."""

    def add(self, data: bytes, offset: int | None = None) -> None:
        """Record output. With `offset` in the whole output, only what was not recorded before."""
        ...

    def add_chunk(self, seq: int, data: bytes) -> None:
        """Record a chunk, once."""
        ...

    def resize(self, rows: int, cols: int) -> None: ...
    def close(self) -> None: ...


class Recordings(Protocol):
    """Recordings of output, for the tenant of the session."""

    def begin(
        self, session_id: str, exec_id: str, title: str, *, rows: int = 24, cols: int = 80
    ) -> OutputRecording | None:
        """Return what records one command; None if nothing is recorded."""
        ...

    async def list(self, session_id: str) -> Sequence[RecordingInfo]:
        """Return the recordings of a session, oldest first."""
        ...

    async def read(self, session_id: str, exec_id: str) -> bytes | None:
        """Return a recording as asciicast v2; None if there is none."""
        ...


class AuditNote(Protocol):
    """A record that is still being made. Its owner may add to it until it is taken."""

    taken: bool

    def row(self) -> AuditRow:
        """Return the record. Called in another thread, after it was taken."""
        ...


class AuditLog(Protocol):
    """Append-only records of what was done; `verify` finds a later change.

    Several processes may write one log.
    """

    def record(self, row: AuditRow) -> None:
        """Append a record. It survives the death of the process when this returns, unless another
        process holds the log or the disk is full: then it is written later. Never raises.
        """
        ...

    def record_soon(self, note: AuditNote) -> None:
        """Append a record a little later, together with others. Never raises."""
        ...

    async def record_lasting(self, row: AuditRow) -> None:
        """Append a record that also survives a power failure. A full disk raises QuotaExceeded."""
        ...

    async def read(self, wanted: AuditFilter) -> Sequence[AuditRow]:
        """Return matching records, oldest first."""
        ...

    def lines(self) -> AsyncIterator[bytes]:
        """Yield the whole log, in pieces: one record per line, oldest first."""
        ...

    async def verify(self, heads: Sequence[AuditHead] = ()) -> AuditReport:
        """Check every record. `heads` were kept elsewhere, and must be among them."""
        ...

    async def aclose(self) -> None:
        """Write what waits and release the files. A later record opens them again."""
        ...


class Keys(Protocol):
    """API keys, by hash. Fast to check, because every request does."""

    def check(self, hashed: bytes, now: float) -> KeyRow | None:
        """Return the valid key with this sha256, or None."""
        ...

    def any_living(self, now: float) -> bool:
        """Return whether any valid key exists."""
        ...

    def any_made(self) -> bool:
        """Return whether a key was ever created, as far as is recorded."""
        ...

    async def add(self, row: KeyRow, hashed: bytes) -> None: ...
    async def revoke(self, key_id: str, at: float) -> KeyRow | None: ...
    async def list(self, tenant: str | None = None) -> Sequence[KeyRow]: ...


class PublicPorts(Protocol):
    """The key that signs links, the revoked links, the public ports, and rules of sandboxes."""

    key: bytes

    def is_public(self, target: PreviewTarget, now: float) -> bool: ...
    def public_until(self, target: PreviewTarget) -> float | None: ...
    async def publish(self, target: PreviewTarget, until: float | None) -> None: ...
    async def withdraw(self, target: PreviewTarget) -> None: ...
    def rules_of(self, sandbox_id: str) -> SandboxPreviews: ...
    async def set_rules_of(self, sandbox_id: str, rules: SandboxPreviews) -> None: ...
    def series(self, sandbox_id: str) -> int: ...
    def is_revoked(self, sandbox_id: str, link_id: str) -> bool: ...
    async def revoke(self, sandbox_id: str, link_id: str, *, now: float, until: float) -> None: ...
    async def revoke_all(self, sandbox_id: str) -> None: ...
    async def reload(self, sandbox_id: str) -> bool: ...


MaxStoredBytes: TypeAlias = "Callable[[], AbstractAsyncContextManager[int | None]]"
"""Limit in bytes for all files of a tenant, valid during the block; None means no limit."""


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
        expect_bytes: int | None = None,
        overwrite: bool = False,
        max_stored_bytes: MaxStoredBytes | None = None,
    ) -> StoredFile:
        """Store all of it or nothing. Without a key it gets `f_<id>`; Conflict if a key is taken.

        `expect_bytes` is only a hint: what is too large by it is refused before it arrives.

        QuotaExceeded if the tenant's stored files would take more than `max_stored_bytes`
        yields, when the bytes begin to arrive or while the file gets its key.
        """
        ...

    async def get(self, tenant: str, key: str) -> StoredFile:
        """Raise FileNotFound if there is none."""
        ...

    def read(
        self, tenant: str, key: str, *, offset: int = 0, limit: int | None = None
    ) -> AbstractAsyncContextManager[tuple[StoredFile, AsyncIterator[bytes]]]: ...
    async def list(
        self, tenant: str, *, prefix: str = "", limit: int = 1000, after: str | None = None
    ) -> Sequence[StoredFile]: ...
    async def delete(self, tenant: str, key: str) -> None: ...
    async def usage(self, tenant: str) -> int:
        """Return the bytes in use."""
        ...

    async def prune(self, now: float) -> int: ...
