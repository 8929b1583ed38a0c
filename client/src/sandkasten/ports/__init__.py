"""Protocols between packages: what the engine needs, and what it offers.

A backend creates an isolated place, returns a byte stream into it and removes it: seven methods
over two Protocols. An implementation raises only classes of `errors`. The only behaviour is
`UNTRACED`, the tracing that does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from sandkasten.ports.agent_ports import Agents, Runs, TenantAgents, TenantTools
from sandkasten.ports.image_ports import (
    ImageLibrary,
    ImageOperations,
    ImagePacker,
    Images,
    ImageSource,
    KeepsImages,
    SpellsImages,
    Watchful,
)
from sandkasten.ports.isolation import (
    Backend,
    ByteStream,
    Candid,
    Cautions,
    Cell,
    Closes,
    CopiesFiles,
    CountsAfterEnd,
    HostMounts,
    KeepsWorkspaces,
    MaintainsWorkspaces,
    Networked,
    Opens,
    Pausable,
    Places,
    Readable,
    Reclaims,
    RefusesNetworks,
    Remote,
    Resizes,
    RunsOnce,
    Workbench,
    backend_part,
    may_hold,
)
from sandkasten.ports.package_ports import Provisioner, Site, Sites
from sandkasten.ports.persistence import (
    AuditLog,
    AuditNote,
    DividesUpkeep,
    FileStore,
    HasExtras,
    HasRequirements,
    Journal,
    Keys,
    MaxStoredBytes,
    OutputRecording,
    PublicPorts,
    Recordings,
    Secrets,
    SnapshotStore,
    Store,
    TalliesTenants,
    Workspaces,
)
from sandkasten.ports.spans import UNTRACED, Span, Tracing

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "UNTRACED",
    "Agents",
    "AuditLog",
    "AuditNote",
    "Backend",
    "ByteStream",
    "Candid",
    "Cautions",
    "CopiesFiles",
    "CountsAfterEnd",
    "Cell",
    "Clock",
    "Closes",
    "DividesUpkeep",
    "EventSink",
    "FileStore",
    "HasExtras",
    "HasRequirements",
    "HostMounts",
    "ImageLibrary",
    "ImageOperations",
    "ImagePacker",
    "ImageSource",
    "Images",
    "Journal",
    "KeepsImages",
    "KeepsWorkspaces",
    "MaintainsWorkspaces",
    "Keys",
    "MaxStoredBytes",
    "OutputRecording",
    "Recordings",
    "Networked",
    "Opens",
    "Pausable",
    "Places",
    "Provisioner",
    "PublicPorts",
    "Readable",
    "Reclaims",
    "RefusesNetworks",
    "Resizes",
    "Remote",
    "RunsOnce",
    "Runs",
    "Site",
    "Sites",
    "Secrets",
    "SnapshotStore",
    "Span",
    "SpellsImages",
    "Store",
    "TalliesTenants",
    "TenantAgents",
    "TenantTools",
    "Tracing",
    "Watchful",
    "Workbench",
    "Workspaces",
    "backend_part",
    "may_hold",
]


class Clock(Protocol):
    """`now` is wall time for people; `boottime` never jumps and is used for TTLs."""

    def now(self) -> float: ...
    def boottime(self) -> float: ...


@runtime_checkable
class EventSink(Protocol):
    """Receives engine events (`sandbox.created`, …). Must not raise and must not block."""

    def emit(self, event: str, fields: Mapping[str, str | int | float | bool | None]) -> None: ...
