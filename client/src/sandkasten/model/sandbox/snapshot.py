"""Snapshots: the files of a sandbox at one moment, and what a new sandbox needs besides them. Pure.

`linux.storage` keeps the files, the engine makes and uses snapshots. Refusals are classes of
`errors`.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  (the codec reads the annotations)
from dataclasses import field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from sandkasten.errors import Conflict, InvalidRequest, QuotaExceeded, SnapshotNotFound
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.access.tenancy import DEFAULT_TENANT
from sandkasten.model.field_patterns import SNAPSHOT_ID, WORKSPACE_NAME, form
from sandkasten.model.json_codec import Public, Timestamp
from sandkasten.model.sandbox.cell_spec import CopiedFiles  # noqa: TC001
from sandkasten.model.sandbox.limit_names import (
    LIMIT_NAMES,
    limit_field,
    public_limits,
    read_public_limits,
)
from sandkasten.model.sandbox.limits import MIB, Limits
from sandkasten.model.sandbox.sandbox_options import LABELS, described
from sandkasten.model.spelling import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sandkasten.model.sandbox.sandbox_options import SandboxOptions

_ID = form(SNAPSHOT_ID)
_NAME = form(WORKSPACE_NAME)
_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SnapshotRules:
    """The operator's settings for snapshots."""

    max_count: int = 100
    """How many a tenant may have."""
    max_total_bytes: int = 100 * 1024 * MIB
    """How much all of them may take together, each counted in full."""
    expire_after_s: float | None = None
    """After which time one is removed; None: never."""


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    name: str | None = field(
        default=None,
        metadata=described(
            "A name to find it by. Several may have one name, which then means the newest.",
            schema={"pattern": f"^(?!snap_){WORKSPACE_NAME}$"},
        ),
    )
    labels: Mapping[str, str] | None = field(
        default=None,
        metadata=described("Labels of the snapshot and of new sandboxes.", schema=LABELS),
    )
    keep_last: int | None = field(
        default=None,
        metadata=described(
            "How many snapshots of this name to keep, or, without a name, how many unnamed ones of "
            "this sandbox. Older ones are removed.",
            ge=1,
            le=10_000,
        ),
    )


@dataclass(frozen=True, slots=True)
class NotKept:
    """What a sandbox had that its snapshot does not have."""

    commands: tuple[str, ...] = ()
    """Ids of commands that were running or queued."""
    contexts: tuple[str, ...] = ()
    """Ids of code contexts."""
    processes: int = 0
    """Other processes, such as background jobs of shells."""
    shells: tuple[str, ...] = ()
    """Shells whose directory and variables could not be read."""
    mounts: tuple[str, ...] = ()
    """Host mounts: a new sandbox has them only if its request names them."""
    paths: tuple[str, ...] = ()
    """Directories that could not be read, such as /tmp on gVisor."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot, as its owner sees it."""

    id: str
    name: str | None
    parent: str | None
    """The snapshot that its sandbox was created from."""
    sandbox_id: str
    created_at: Timestamp
    image: str
    image_id: str
    """Identifies the content of the image; empty for the host's."""
    backend: str
    profile: str
    hostname: str | None = None
    limits: Annotated[Limits, Public(public_limits, read_public_limits)] = field(
        default_factory=Limits
    )
    network: Any = "none"
    labels: Mapping[str, str] = field(default_factory=lambda: _NONE)
    env_names: tuple[str, ...] = ()
    shells: tuple[str, ...] = ()
    size_bytes: int = 0
    """What it takes on the disk, also of what it shares with others."""
    method: Literal["reflink", "extents"] = "extents"
    """reflink: it shares its blocks with the sandbox until they are written; extents: a copy."""
    frozen_ms: float = 0.0
    """For how long the sandbox was stopped."""
    not_kept: NotKept = NotKept()


@dataclass(frozen=True, slots=True)
class KeptShell:
    """A persistent shell: where it was, and how its environment differs from that of commands."""

    name: str
    cwd: str
    env: Mapping[str, str] = field(default_factory=lambda: _NONE)
    unset: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """The part of a snapshot that only a create from it reads."""

    env: Mapping[str, str] = field(default_factory=lambda: _NONE)
    shells: tuple[KeptShell, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """The metadata stored beside the files of a snapshot."""

    id: str
    sandbox_id: str
    created_at: float
    image: str
    image_id: str
    backend: str
    profile: str
    files: CopiedFiles
    tenant: str = DEFAULT_TENANT
    name: str | None = None
    parent: str | None = None
    hostname: str | None = None
    limits: Limits = field(default_factory=Limits)
    network: Any = "none"
    labels: Mapping[str, str] = field(default_factory=lambda: _NONE)
    env_names: tuple[str, ...] = ()
    pip_packages: tuple[str, ...] = ()
    npm_packages: tuple[str, ...] = ()
    shells: tuple[str, ...] = ()
    size_bytes: int = 0
    frozen_ms: float = 0.0
    not_kept: NotKept = NotKept()
    state: SnapshotState = SnapshotState()
    """Stored apart: it is large, and a list does not need it."""

    def public(self) -> Snapshot:
        return Snapshot(
            id=self.id,
            name=self.name,
            parent=self.parent,
            sandbox_id=self.sandbox_id,
            created_at=self.created_at,
            image=self.image,
            image_id=self.image_id,
            backend=self.backend,
            profile=self.profile,
            hostname=self.hostname,
            limits=self.limits,
            network=self.network,
            labels=self.labels,
            env_names=self.env_names,
            shells=self.shells,
            size_bytes=self.size_bytes,
            method=self.files.method,
            frozen_ms=self.frozen_ms,
            not_kept=self.not_kept,
        )


@dataclass(frozen=True, slots=True)
class BegunSnapshot:
    """A snapshot that is being made."""

    id: str
    sandbox_id: str
    tenant: str | None = DEFAULT_TENANT
    """None: it counts for no tenant, because it ends with its fork, or is what a crash left."""
    size_bytes: int = 0
    """What it takes, as far as that is known."""


@dataclass(frozen=True, slots=True)
class SnapshotSpace:
    """What a snapshot takes on the disk, also if it is being made or removed, or is damaged."""

    id: str
    tenant: str | None
    """None: it counts for no tenant."""
    size_bytes: int
    created_at: float | None = None
    """None: it is being made or removed."""
    damaged: bool = False


def is_snapshot_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def checked_snapshot_name(name: object) -> str | None:
    if name is None:
        return None
    if isinstance(name, str) and _NAME.match(name) and not name.startswith("snap_"):
        return name
    text = shown(name) if isinstance(name, str) else f"a value of type {type(name).__name__}"
    raise InvalidRequest(
        f"{text} is not a valid snapshot name",
        hint="1 to 64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit, and not "
        "with snap_",
        field="name",
    )


def unknown_snapshot(text: str) -> SnapshotNotFound:
    return SnapshotNotFound(
        f"there is no snapshot {shown(text)}",
        hint="list them with: sandkasten snapshot ls",
        snapshot=text[:100],
    )


def check_room(
    rules: SnapshotRules,
    tenant: str | None,
    size_bytes: int,
    all_: Sequence[SnapshotSpace],
) -> None:
    """Raise QuotaExceeded if one more snapshot of this size is too much."""
    count = sum(snapshot.tenant == tenant for snapshot in all_)
    if tenant is not None and count >= rules.max_count:
        raise QuotaExceeded(
            f"tenant {tenant} has {count} of {rules.max_count} snapshots",
            hint="remove some (sandkasten snapshot rm), or raise snapshots.max_count",
            quota="snapshots",
            limit=rules.max_count,
            used=count,
        )
    used = sum(snapshot.size_bytes for snapshot in all_)
    if used + size_bytes > rules.max_total_bytes:
        raise QuotaExceeded(
            f"this snapshot needs {size_bytes // MIB} MB, and the snapshots of all tenants may "
            f"take {rules.max_total_bytes // MIB} MB",
            hint="remove some (sandkasten snapshot rm), or raise snapshots.max_total_mb",
            quota="snapshots",
            limit=rules.max_total_bytes,
        )


def superseded(
    stored: StoredSnapshot, keep_last: int, all_: Iterable[StoredSnapshot]
) -> list[StoredSnapshot]:
    """Return the snapshots that `keep_last` of this one removes."""
    series = [
        other
        for other in all_
        if other.tenant == stored.tenant
        and other.name == stored.name
        and (stored.name is not None or other.sandbox_id == stored.sandbox_id)
    ]
    series.sort(key=lambda other: (other.created_at, other.id), reverse=True)
    return series[keep_last:]


def completed_options(options: SandboxOptions, stored: StoredSnapshot) -> SandboxOptions:
    """Return the options of a request, and those of the snapshot where the request names none.
    Raise Conflict for options that contradict the snapshot.
    """
    if options.workspace_id is not None:
        raise _contradicts(
            stored,
            "workspace_id",
            "its sandbox has the files of the snapshot as its workspace",
            "leave workspace_id out; to keep files beyond the sandbox, take another snapshot",
        )
    if options.profile not in (None, stored.profile):
        raise _contradicts(
            stored, "profile", f"it has profile {stored.profile}", "leave profile out"
        )
    # A limit has several names.
    requested = {limit_field(name) for name in options.limits if name in LIMIT_NAMES}
    has = public_limits(stored.limits).items()
    limits = {name: value for name, value in has if limit_field(name) not in requested}
    limits |= options.limits
    for name, size in (
        ("workspace_mb", stored.limits.workspace_bytes),
        ("tmp_mb", stored.limits.tmp_bytes),
    ):
        if isinstance(limits[name], int | float) and limits[name] < size / MIB:
            why, hint = f"it has {size / MIB:g} MB", f"leave {name} out, or ask for more"
            raise _contradicts(stored, name, why, hint)
    named = options.backend is not None or options.isolation is not None
    return replace(
        options,
        snapshot=stored.id,
        image=stored.image if options.image is None else options.image,
        backend=options.backend if named else stored.backend,
        profile=stored.profile,
        hostname=stored.hostname if options.hostname is None else options.hostname,
        network=stored.network if options.network is None else options.network,
        limits=limits,
        env={**stored.state.env, **options.env},
        labels={**stored.labels, **options.labels},
        pip_packages=options.pip_packages or stored.pip_packages,
        npm_packages=options.npm_packages or stored.npm_packages,
    )


def other_image(stored: StoredSnapshot, name: str) -> Conflict:
    return _contradicts(
        stored,
        "image",
        f"it has image {stored.image}, and {name} is another one",
        "leave image out: the files of a snapshot belong to its image",
    )


def _contradicts(stored: StoredSnapshot, field_name: str, why: str, hint: str) -> Conflict:
    return Conflict(
        f"{field_name} contradicts snapshot {stored.id}: {why}",
        hint=hint,
        snapshot=stored.id,
        field=field_name,
    )
