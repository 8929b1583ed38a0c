"""Interface of a backend: an isolated place, a byte stream into it, and its removal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from sandkasten.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from threading import Event

    from sandkasten.errors import UnsupportedByBackend
    from sandkasten.model.backends.capabilities import Capabilities
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.images.resolved_image import Image
    from sandkasten.model.sandbox.cell_spec import (
        CellSpec,
        CopiedFiles,
        HostMount,
        RootChanges,
    )
    from sandkasten.model.sandbox.host_mounts import MountRule
    from sandkasten.model.sandbox.inspection import Inspection
    from sandkasten.model.sandbox.limits import Limits, Unenforced
    from sandkasten.model.sandbox.network_policy import NetworkCounts, NetworkPolicy
    from sandkasten.model.sandbox.oneshot_values import RunOrder, RunOutcome
    from sandkasten.model.sandbox.readiness import Readiness
    from sandkasten.model.sandbox.usage import Usage

T = TypeVar("T")


class ByteStream(Protocol):
    """A reliable two-way stream. `receive` returns b"" at the end; errors are OSError."""

    async def receive(self, max_bytes: int) -> bytes: ...
    async def send(self, *parts: bytes | bytearray | memoryview) -> None: ...
    async def aclose(self) -> None: ...


class Cell(Protocol):
    """One isolated place whose first process is our runner."""

    async def dial(self) -> ByteStream:
        """Open a new connection to the runner. Raise SandboxLost if it no longer exists."""
        ...

    async def usage(self) -> Usage:
        """Return what the kernel counts for the place; a number that it does not count is None."""
        ...

    async def destroy(self) -> None:
        """Remove everything. Twice is fine; so is a half-made cell."""
        ...


class Backend(Protocol):
    """Isolation of sandboxes, and nothing else: seven verbs, and a value that lists what it can do.

    What only some backends can do is a separate Protocol, which `capabilities` promises and
    `backend_part` returns.
    """

    @property
    def name(self) -> str: ...
    @property
    def capabilities(self) -> Capabilities: ...
    async def probe(self) -> Readiness: ...
    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> Cell:
        """Return a cell whose runner has sent its hello, or raise and leave nothing behind."""
        ...

    async def attach(self, sandbox_id: SandboxId) -> Cell:
        """Return a cell created earlier, maybe by another process. Raise SandboxLost if it is
        gone.
        """
        ...

    async def owned(self) -> Sequence[SandboxId]:
        """Return every id for which this backend still holds anything, alive or not.

        One with several `Places` leaves out those that it cannot list now, unless it can list none.
        """
        ...

    async def discard(self, sandbox_id: SandboxId) -> None:
        """Remove everything still held for the id of a cell that can no longer be attached to.
        Twice is fine; so is an unknown id.
        """
        ...

    async def ping(self) -> None:
        """Raise BackendUnavailable if the platform that it depends on does not answer."""
        ...

    async def aclose(self) -> None:
        """Close its own connections; the sandboxes keep running. Twice is fine."""
        ...


@runtime_checkable
class Opens(Protocol):
    """A backend that is opened when it is first used."""

    async def opened(self) -> Backend:
        """Return the backend itself. Raise BackendUnavailable if it cannot be opened."""
        ...

    def may_hold(self) -> bool:
        """Return whether it may own anything, without opening it."""
        ...


def may_hold(backend: Backend) -> bool:
    """Return whether a backend may own anything; False only for one that was never used here."""
    return not isinstance(backend, Opens) or backend.may_hold()


async def backend_part(backend: Backend, kind: type[T]) -> T:
    """Return the backend as one of the Protocols that its capabilities promise. Raise InternalError
    if it does not implement it.
    """
    part: object = await backend.opened() if isinstance(backend, Opens) else backend
    if not isinstance(part, kind):
        raise InternalError(
            f"backend {backend.name} does not implement {kind.__name__}",
            hint="correct its capabilities",
        )
    return part


@runtime_checkable
class RunsOnce(Protocol):
    """A backend that cannot keep a sandbox: it runs one command to its end, and that is all.

    Only one-shots use it. As a `Backend`, it refuses to create a cell and owns nothing.
    """

    async def reach(self, spec: CellSpec) -> None:
        """Raise BackendUnavailable if the engine of such a run does not answer. Runs no code."""
        ...

    async def run(self, order: RunOrder) -> RunOutcome:
        """Run our runner with the order's script to its end. When this returns or raises, also by
        a cancellation, nothing of it runs any more. Raise BackendUnavailable if the engine failed,
        and UnsupportedByBackend for what it cannot do.
        """
        ...


@runtime_checkable
class Closes(Protocol):
    """A store that keeps its own descriptors open."""

    async def aclose(self) -> None:
        """Close the connections. Twice is fine."""
        ...


@runtime_checkable
class Remote(Protocol):
    """A backend whose sandboxes may run where this machine's files cannot be mounted."""

    async def sees_files(self) -> bool:
        """Return whether a directory of this machine can be mounted."""
        ...


@runtime_checkable
class Places(Protocol):
    """A backend whose platform has several places for sandboxes, such as a namespace per tenant.

    An error of one place has its name as `place` in its details: the others are not affected.
    """

    def note_place(self, sandbox_id: SandboxId, place: str) -> None:
        """Take note of where a sandbox was made, for `attach` and `discard`. Without it, they look
        in all places.
        """
        ...


@runtime_checkable
class RefusesNetworks(Protocol):
    """A backend whose platform decides whether its sandboxes can have a network."""

    async def network_refusal(self, policy: NetworkPolicy) -> UnsupportedByBackend | None:
        """Return the error for a request with this network; None if it can have it."""
        ...


@runtime_checkable
class KeepsWorkspaces(Protocol):
    """A backend that can keep named workspaces itself, as `Volume` of kind `volume`.

    A workspace is made with the first sandbox that has it. The caller holds the lock of its name.
    """

    async def keeps_workspaces(self) -> bool:
        """Return whether it does, rather than using files of this machine. Raise
        UnsupportedByBackend if it can do neither.
        """
        ...

    async def copy_workspace(self, source: str, target: str) -> None:
        """Copy all files, or raise and leave no target."""
        ...

    async def remove_workspace(self, name: str) -> None:
        """Remove all files. Twice is fine."""
        ...


@runtime_checkable
class MaintainsWorkspaces(Protocol):
    """A backend that keeps workspaces, can enlarge them, and finds copies that a crash interrupted.

    The caller holds the lock of the name.
    """

    async def resize_workspace(self, name: str, size_bytes: int) -> None:
        """Enlarge the workspace if its size is enforced. Raise UnsupportedByBackend."""
        ...

    async def interrupted_workspaces(self) -> Sequence[str]:
        """Return the names for which a crash may have left an incomplete copy or removal."""
        ...

    async def clear_workspace(self, name: str, *, recorded: bool) -> None:
        """Remove what such a crash left: all files of an incomplete copy, if no workspace of that
        name is recorded. A workspace that is complete stays. Also called after each copy.
        """
        ...


@runtime_checkable
class Candid(Protocol):
    """A cell that reports which of its limits the host does not enforce."""

    @property
    def unenforced(self) -> Sequence[Unenforced]: ...


@runtime_checkable
class Cautions(Protocol):
    """A cell that reports what its owner should know about the software below it."""

    @property
    def warnings(self) -> Sequence[str]: ...


@runtime_checkable
class Pausable(Protocol):
    """A cell whose processes can be stopped and continued, all of them at once."""

    async def pause(self) -> None:
        """Stop all processes; none runs when this returns. Twice is fine."""
        ...

    async def resume(self) -> None:
        """Continue all processes. Twice is fine."""
        ...


@runtime_checkable
class CopiesFiles(Protocol):
    """A cell whose files can be copied while its processes are stopped."""

    async def flush_files(self) -> int:
        """Write back what is in memory, so that a copy that follows is fast. Return how many bytes
        the copy takes at most. Raise UnsupportedByBackend if there can be none.
        """
        ...

    async def copy_files(self, target: str, stop: Event) -> CopiedFiles:
        """Copy everything that the sandbox can write into the empty directory `target`. The caller
        has stopped its processes, and removes what a failure leaves. `stop` ends it with Cancelled.
        """
        ...

    async def reserve_files(self, min_free: int) -> None:
        """Give the volumes back the space of their own that a copy shares with them. At least
        `min_free` bytes of the disk stay free. Raise QuotaExceeded.
        """
        ...


@runtime_checkable
class Resizes(Protocol):
    """A backend that can change the limits of processors, memory and processes of a sandbox."""

    async def resize(self, sandbox_id: SandboxId, limits: Limits) -> None:
        """Set the limits of processors, memory and processes. Raise BackendUnavailable."""
        ...


@runtime_checkable
class Reclaims(Protocol):
    """A cell whose memory can be returned to the host while it is idle."""

    async def reclaim(self) -> int:
        """Return how many bytes the host got back; pages that are needed again are read again."""
        ...


@runtime_checkable
class Networked(Protocol):
    """A cell that can reach a network by rule.

    If it was created without a network, the methods raise UnsupportedByBackend, and there are no
    records.
    """

    async def change_network(
        self,
        policy: NetworkPolicy,
        reachable: Sequence[str],
        inspection: Inspection | None = None,
    ) -> None:
        """Use other rules from now on; connections that they refuse end at once.

        `reachable`: the networks that the operator opens besides public addresses. `inspection`:
        what is inspected from now on; None changes nothing about it. It requires a cell that was
        created with one, else raise UnsupportedByBackend.
        """
        ...

    async def cut_network(self) -> bool:
        """End the network for good without asking the process that decides about it. Return False
        if that cannot be done.
        """
        ...

    async def network_counts(self) -> NetworkCounts:
        """Return what was counted since the cell was made. Raise Busy if that process is silent."""
        ...

    async def network_records(self, after: int, since: float = 0.0) -> Sequence[Mapping[str, Any]]:
        """Return the records after a sequence number and since a time, oldest first.

        Old ones may be gone.
        """
        ...


@runtime_checkable
class CountsAfterEnd(Protocol):
    """A backend that still knows what a sandbox counted after it ended."""

    async def final_counts(self, sandbox_id: SandboxId) -> NetworkCounts:
        """Return the counters of a sandbox whose files exist. Raise SandboxLost if it left
        none.
        """
        ...


@runtime_checkable
class Readable(Protocol):
    """A cell with a writable root whose changes can be read."""

    def changes(self) -> AbstractContextManager[RootChanges]:
        """Yield the changes during the block; they keep changing while anything inside runs."""
        ...


class Workbench(Protocol):
    """Runs one command in a temporary sandbox of an image, and yields what it changed."""

    def network(self, value: object) -> NetworkPolicy:
        """Return the network that a value stands for. Raise InvalidRequest or PolicyDenied."""
        ...

    async def check(self) -> None:
        """Raise UnsupportedByBackend if it is known that no command can run here."""
        ...

    def run(
        self,
        image: Image,
        command: tuple[str, ...],
        *,
        cwd: str,
        env: Mapping[str, str],
        network: NetworkPolicy,
        pip: tuple[str, ...],
        on_line: Callable[[str], None],
    ) -> AbstractAsyncContextManager[RootChanges]:
        """Run the command with the Python packages `pip`. Raise BuildFailed if it fails; after the
        block the sandbox is removed.
        """
        ...


class HostMounts(Protocol):
    """Checks the host paths that an operator lets sandboxes mount, each time they are used."""

    async def resolve(self, rules: Sequence[MountRule]) -> Sequence[HostMount]:
        """Return real paths. Raise BackendUnavailable if one is missing, PolicyDenied if one is
        secret.
        """
        ...
