"""What a backend is: an isolated place, a byte stream into it, and its removal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.images.resolved_image import Image
    from sandkasten.model.sandbox.cell_spec import CellSpec, HostMount, RootChanges
    from sandkasten.model.sandbox.host_mounts import MountRule
    from sandkasten.model.sandbox.limits import Unenforced
    from sandkasten.model.sandbox.readiness import Readiness
    from sandkasten.model.sandbox.usage import Usage


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
        on_line: Callable[[str], None],
    ) -> AbstractAsyncContextManager[RootChanges]:
        """BuildFailed when the command fails; nothing of the sandbox is left after the block."""
        ...


class HostMounts(Protocol):
    """Looks at what an operator lets sandboxes see of the host, at the moment it is used."""

    async def resolve(self, rules: Sequence[MountRule]) -> Sequence[HostMount]:
        """Real paths; BackendUnavailable when one is not there, PolicyDenied when it is secret."""
        ...
