"""Named workspaces: names, values and admission rules. Pure.

Knows nothing about files, rows on disk or locks: `linux.storage` keeps workspaces, and the engine
calls these functions while it holds the lock of the name. Refusals are classes of `errors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from sandkasten.errors import Conflict, InvalidRequest, QuotaExceeded, UnsupportedByBackend
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.access.tenancy import scoped, unscoped
from sandkasten.model.field_patterns import TENANT, WORKSPACE_NAME, form
from sandkasten.model.numbers import number
from sandkasten.model.sandbox.limits import MIB
from sandkasten.model.spelling import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.sandbox_values import CreateRequest

_NAME = form(WORKSPACE_NAME)
_KEPT = form(f"{WORKSPACE_NAME}(@{TENANT})?")
_RULE = "1 to 64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit"

VolumeKind = Literal["image", "directory", "volume"]


@dataclass(frozen=True, slots=True)
class WorkspaceRules:
    """The operator's settings for named workspaces."""

    default_bytes: int = 500 * MIB
    """The size of one whose maker named none."""
    max_bytes: int = 1024 * 1024 * MIB
    max_count: int = 1000


@dataclass(frozen=True, slots=True)
class DiskRules:
    """The operator's settings for the disk below the data directory."""

    reserve: Literal["all", "named", "none"] = "all"
    """Which workspaces get all of their space when they are made; the others share what is free."""
    min_free_bytes: int = 64 * MIB
    """What stays free: less refuses new workspaces, and writes to those that share the space."""
    flush: bool = True
    """Whether a change by a file method is on disk before it is acknowledged."""


@dataclass(frozen=True, slots=True)
class WorkspaceRequest:
    """A workspace that a request names."""

    name: str
    """As it is kept."""
    shared: bool = False
    asked_bytes: int | None = None
    """None: the size it has, or the operator's for a new one."""
    must_exist: bool = False
    """WorkspaceNotFound in place of a new one."""


@dataclass(frozen=True, slots=True)
class StoredWorkspace:
    """The metadata stored beside a workspace."""

    name: str
    kind: VolumeKind
    size_bytes: int
    created_at: float
    keeper: str = ""
    """The backend that has its files, if its kind is volume."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Sizes of a workspace; None where they cannot be measured from outside."""

    used_bytes: int | None
    """By files, as a user inside would count them."""
    allocated_bytes: int | None
    """On the host's disk."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """One named workspace."""

    name: str
    kind: VolumeKind | None
    """image: the kernel enforces its size; directory: its size is not enforced; volume: it is a
    volume of the backend, which may not enforce its size."""
    size_bytes: int | None
    created_at: float | None
    used_bytes: int | None = None
    allocated_bytes: int | None = None
    used_by: tuple[str, ...] = ()
    """The living sandboxes that have it."""
    shared: bool = False
    """Whether those share it."""
    problem: str | None = None
    """Why it cannot be used as it is; None when it can."""


def checked_workspace_name(name: object) -> str:
    """Return the name; InvalidRequest if invalid. A valid name can never be a path."""
    if isinstance(name, str) and _NAME.match(name):
        return name
    text = shown(name) if isinstance(name, str) else f"a value of type {type(name).__name__}"
    hint = f"a name is {_RULE}"
    if isinstance(name, str) and _NAME.match(name.lower()):
        hint = f"names are in lower case: {name.lower()}"
    raise InvalidRequest(f"{text} is not a valid workspace name", hint=hint, field="workspace_id")


def is_kept_name(name: str) -> bool:
    """Return whether a string is a stored name (with its tenant). Never a path."""
    return _KEPT.match(name) is not None


def checked_kept_name(name: str) -> str:
    """Return a stored name; InvalidRequest if invalid. Users never write one."""
    return name if is_kept_name(name) else checked_workspace_name(name)


def plain_name(stored_name: str) -> str:
    """Return the name as its owner knows it."""
    return unscoped(stored_name)[1]


def checked_mode(mode: object, name: str | None) -> bool:
    """Return whether the workspace is to be shared."""
    if mode is None:
        return False
    if mode not in ("exclusive", "shared"):
        raise InvalidRequest(
            f"{shown(str(mode))} is not a valid workspace mode",
            hint="exclusive (one sandbox at a time) or shared",
            field="workspace_mode",
        )
    if name is None:
        raise InvalidRequest(
            f"workspace mode {mode} requires a named workspace",
            hint="name it with workspace_id; without a name it is always the sandbox's own",
            field="workspace_mode",
        )
    return mode == "shared"


def workspace_request(request: CreateRequest, rules: WorkspaceRules) -> WorkspaceRequest | None:
    """Return the workspace a request asks for; None when it names none."""
    options = request.options
    shared = checked_mode(options.workspace_mode, options.workspace_id)
    if options.workspace_id is None:
        return None
    requested_mb = options.limits.get("workspace_mb")
    return WorkspaceRequest(
        scoped(request.tenant, checked_workspace_name(options.workspace_id)),
        shared,
        None if requested_mb is None else checked_size(requested_mb, rules),
    )


def checked_size(size_mb: object, rules: WorkspaceRules) -> int:
    return int(number("workspace_mb", size_mb, low=1, high=rules.max_bytes / MIB) * MIB)


def check_size(stored: StoredWorkspace, requested: int | None) -> None:
    """Raise Conflict if a request asks for another size than the workspace has."""
    if requested is None or requested == stored.size_bytes:
        return
    has, wants = f"{stored.size_bytes / MIB:g} MB", f"{requested / MIB:g} MB"
    raise Conflict(
        f"workspace {plain_name(stored.name)} has {has}, not {wants}",
        hint="leave workspace_mb out; it cannot be made smaller"
        if requested < stored.size_bytes
        else "leave workspace_mb out, or enlarge it first: sandkasten workspace resize",
        workspace=plain_name(stored.name),
    )


def check_keeper(stored: StoredWorkspace, keeper: str, backend: str) -> None:
    """Raise UnsupportedByBackend if this backend cannot have the workspace. `keeper` is its name
    if it keeps workspaces itself.
    """
    name = plain_name(stored.name)
    if stored.keeper == keeper:
        return
    if stored.keeper:
        raise UnsupportedByBackend(
            f"workspace {name} is a volume of backend {stored.keeper}, and not available on "
            f"backend {backend}",
            hint=f"request backend {stored.keeper}, or use another workspace",
            workspace=name,
        )
    raise UnsupportedByBackend(
        f"workspace {name} is stored on the daemon's machine, which backend {backend} does not see",
        hint="use another workspace: the backend makes it where it can be used",
        workspace=name,
    )


def workspace_elsewhere(name: str, keeper: str, wanted: str) -> UnsupportedByBackend:
    """Return the error for a workspace on another backend than those with these labels."""
    return UnsupportedByBackend(
        f"workspace {plain_name(name)} is a volume of backend {keeper}, which does not have "
        f"{wanted}",
        hint=f"request backend {keeper}, or use another workspace",
        workspace=plain_name(name),
    )


def check_count(there: int, rules: WorkspaceRules) -> None:
    if there >= rules.max_count:
        raise QuotaExceeded(
            f"there are {there} workspaces already",
            hint="delete some, or raise workspace.max_count",
            limit=rules.max_count,
        )


def admit(name: str, shared: bool, holders: Sequence[Record]) -> None:
    """Raise Conflict if the workspace's present users exclude one more; it names them."""
    if not holders:
        return
    if shared and all(holder.workspace_shared for holder in holders):
        return
    first, name = holders[0], plain_name(name)
    how = "shared" if first.workspace_shared else "for itself"
    raise Conflict(
        f"workspace {name} is in use: sandbox {first.id} has it {how}",
        hint="destroy that sandbox, or request mode shared in every sandbox that uses it",
        workspace=name,
        sandbox_id=first.id,
    )


def check_unused(name: str, attempt: str, holders: Sequence[Record]) -> None:
    if holders:
        ids, name = [holder.id for holder in holders], plain_name(name)
        raise Conflict(
            f"workspace {name} cannot be {attempt} while sandbox {ids[0]} has it",
            hint="destroy the sandboxes that use it first",
            workspace=name,
            sandbox_ids=[str(sandbox_id) for sandbox_id in ids[:20]],
        )
