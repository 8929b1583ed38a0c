"""What the engine needs from the outside, as Protocols. No behaviour lives here.

A backend makes an isolated place, hands us a byte stream into it and removes it: seven
verbs over two Protocols. Only classes of `errors` leave an implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterable,
        AsyncIterator,
        Callable,
        Mapping,
        Sequence,
    )
    from collections.abc import Set as AbstractSet
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.image import Image, Lookup
    from sandkasten.model.images import (
        ArchiveFormat,
        BuiltImage,
        CollectedImages,
        Exported,
        ImageInfo,
        ImageProgress,
        ImageUsage,
        RemovedImage,
    )
    from sandkasten.model.journal import (
        AuditRow,
        ExecRow,
        KeyRow,
        SessionEnd,
        SessionRow,
        StoredFile,
    )
    from sandkasten.model.limits import Unenforced
    from sandkasten.model.mounts import MountRule
    from sandkasten.model.readiness import Readiness
    from sandkasten.model.record import Record
    from sandkasten.model.spec import CellSpec, HostMount, RootChanges, Volume
    from sandkasten.model.usage import Usage
    from sandkasten.model.workspace import Measure, StoredWorkspace


class ByteStream(Protocol):
    """A reliable two-way stream. `receive` answers b"" at the end; errors are OSError."""

    async def receive(self, max_bytes: int) -> bytes: ...
    async def send(self, *parts: bytes | bytearray | memoryview) -> None: ...
    async def aclose(self) -> None: ...


class Cell(Protocol):
    """One isolated place whose first process is our runner."""

    async def dial(self) -> ByteStream:
        """A fresh connection to the runner; raises SandboxLost when there is none any more."""
        ...

    async def usage(self) -> Usage:
        """What the kernel counts for the place; a figure it does not count is None."""
        ...

    async def destroy(self) -> None:
        """Remove everything. Twice is fine; so is a half-made cell."""
        ...


class Backend(Protocol):
    """Isolation and nothing else."""

    @property
    def name(self) -> str: ...
    async def probe(self) -> Readiness: ...
    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> Cell:
        """A cell whose runner has said hello, or an error and nothing left behind."""
        ...

    async def attach(self, sandbox_id: SandboxId) -> Cell:
        """The cell made earlier, maybe by another process; SandboxLost when it is gone."""
        ...

    async def owned(self) -> Sequence[SandboxId]:
        """Every id this backend still holds anything for, alive or not."""
        ...


@runtime_checkable
class Discards(Protocol):
    """A backend that can remove what is left of a cell that nobody can attach to any more."""

    async def discard(self, sandbox_id: SandboxId) -> None:
        """Remove whatever is still held for the id. Twice is fine; so is an unknown id."""
        ...


@runtime_checkable
class Closes(Protocol):
    """A backend that keeps connections of its own open."""

    async def aclose(self) -> None:
        """Its sandboxes live on. Twice is fine."""
        ...


@runtime_checkable
class Candid(Protocol):
    """A cell that knows which of its limits the host does not hold."""

    @property
    def unenforced(self) -> Sequence[Unenforced]: ...


@runtime_checkable
class Pausable(Protocol):
    """A cell whose processes can be stopped and continued, all of them at once."""

    async def pause(self) -> None:
        """Nothing inside runs when this returns. Twice is fine."""
        ...

    async def resume(self) -> None:
        """Twice is fine."""
        ...


@runtime_checkable
class Reclaims(Protocol):
    """A cell whose memory can be given back to the host while nobody needs it."""

    async def reclaim(self) -> int:
        """How many bytes the host got back; what is needed again is read again."""
        ...


@runtime_checkable
class Readable(Protocol):
    """A cell with a writable root, whose changes can be read out."""

    def changes(self) -> AbstractContextManager[RootChanges]:
        """For as long as the block lasts; they go on changing while anything inside runs."""
        ...


class Workbench(Protocol):
    """Runs one command in a throw-away sandbox of an image, and shows what it changed."""

    def run(
        self,
        image: Image,
        command: tuple[str, ...],
        *,
        cwd: str,
        said: Callable[[str], None],
    ) -> AbstractAsyncContextManager[RootChanges]:
        """BuildFailed when the command fails; nothing of the sandbox is left after the block."""
        ...


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


class ImageSource(Protocol):
    """Turns the name a user wrote into something a backend can show as a root file system."""

    async def resolve(self, name: str) -> Image:
        """The host image may stand in for an alias; InvalidImage, PolicyDenied otherwise."""
        ...

    async def look_up(self, name: str, *, fetch: bool = False) -> Lookup:
        """The same for a backend with images of its own: the host stands in for nothing.

        Only with `fetch` is what is missing brought in, where the operator lets the store do so.
        """
        ...


@runtime_checkable
class KeepsImages(Protocol):
    """A backend with images of its own, beside those of the store; it cannot show the host's."""

    async def find_image(self, names: Sequence[str]) -> Image | None:
        """The first of these that it has (kind `engine`, with its id), or None.

        Where its operator lets it, the last is fetched; RegistryUnavailable when that failed.
        """
        ...

    async def bring_image(self, image: Image) -> None:
        """It has this image of the store when this returns; may take as long as a copy takes."""
        ...


class ImagePacker(Protocol):
    """Packs an image of the store for an engine that keeps its own copies."""

    def archive(self, image: Image, reference: str) -> AsyncGenerator[bytes, None]:
        """A docker archive (`docker load`) of all of `image.layers` under that one reference."""
        ...


@runtime_checkable
class Watchful(Protocol):
    """A source whose images can be removed while somebody begins to use one."""

    async def present(self, image: Image) -> bool:
        """Whether it can still be found. Asked after its use was written into the ledger."""
        ...


class ImageLibrary(Protocol):
    """The images of this machine: what is there, and how it comes and goes.

    `in_use` are the ids of images that sandboxes run on. Reports of progress arrive on the
    event loop of the caller.
    """

    async def list(self) -> Sequence[ImageInfo]: ...
    async def inspect(self, name: str) -> ImageInfo: ...
    async def import_archive(
        self,
        path: str,
        *,
        name: str | None = None,
        platform: str | None = None,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> Sequence[ImageInfo]: ...
    async def import_stream(
        self,
        data: AsyncIterable[bytes],
        *,
        name: str | None = None,
        platform: str | None = None,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> Sequence[ImageInfo]:
        """As `import_archive`, of an archive that comes from elsewhere and is kept by nobody."""
        ...

    async def export(
        self,
        name: str,
        path: str,
        *,
        format: ArchiveFormat = "docker",
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> Exported: ...
    async def pull(
        self,
        name: str,
        *,
        platform: str | None = None,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> ImageInfo: ...
    async def build_debian(
        self,
        name: str,
        suite: str,
        *,
        include: Sequence[str] = (),
        variant: str = "minbase",
        mirror: str | None = None,
        refresh: bool = False,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> BuiltImage: ...
    async def build_steps(
        self,
        name: str,
        file: str,
        *,
        refresh: bool = False,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> BuiltImage: ...
    async def tag(self, name: str, new: str) -> ImageInfo: ...
    async def remove(self, name: str, *, in_use: AbstractSet[str]) -> RemovedImage:
        """Conflict when it is in use; its layers stay until `collect`."""
        ...

    async def collect(self, *, in_use: AbstractSet[str], wait_s: float = 30.0) -> CollectedImages:
        """Busy when somebody is adding an image for longer than `wait_s`."""
        ...

    async def usage(self, *, in_use: AbstractSet[str]) -> ImageUsage: ...


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


class HostMounts(Protocol):
    """Looks at what an operator lets sandboxes see of the host, at the moment it is used."""

    async def resolve(self, rules: Sequence[MountRule]) -> Sequence[HostMount]:
        """Real paths; BackendUnavailable when one is not there, PolicyDenied when it is secret."""
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
    ) -> StoredFile:
        """Whole or not at all. Without a key it gets `f_<id>`; Conflict when a key is taken."""
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


class Clock(Protocol):
    """`now` is wall time for people; `boottime` never jumps and counts TTLs."""

    def now(self) -> float: ...
    def boottime(self) -> float: ...


@runtime_checkable
class EventSink(Protocol):
    """Receives what happened (`sandbox.created`, …); must not raise and must not block."""

    def emit(self, event: str, fields: Mapping[str, str | int | float | bool | None]) -> None: ...
