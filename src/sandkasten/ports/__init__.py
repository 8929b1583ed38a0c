"""Protocols between rooms: what the engine needs, and what it offers. No behaviour lives here.

A backend makes an isolated place, hands us a byte stream into it and removes it: seven
verbs over two Protocols. Only classes of `errors` leave an implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from sandkasten.ports.agent_ports import Agents, Runs, TenantAgents
from sandkasten.ports.image_ports import (
    ImageLibrary,
    ImageOperations,
    ImagePacker,
    Images,
    ImageSource,
    KeepsImages,
    Watchful,
)
from sandkasten.ports.isolation import (
    Backend,
    ByteStream,
    Candid,
    Cell,
    Closes,
    Discards,
    HostMounts,
    Pausable,
    Readable,
    Reclaims,
    Workbench,
)
from sandkasten.ports.package_ports import Provisioner, Site, Sites
from sandkasten.ports.persistence import (
    FileStore,
    Journal,
    Keys,
    MaxStoredBytes,
    Store,
    Workspaces,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Agents",
    "Runs",
    "Backend",
    "ByteStream",
    "Candid",
    "Cell",
    "Clock",
    "Closes",
    "Discards",
    "EventSink",
    "FileStore",
    "HostMounts",
    "ImageLibrary",
    "ImageOperations",
    "ImagePacker",
    "Images",
    "ImageSource",
    "Journal",
    "KeepsImages",
    "Keys",
    "MaxStoredBytes",
    "Pausable",
    "Provisioner",
    "Readable",
    "Reclaims",
    "Site",
    "Sites",
    "Store",
    "TenantAgents",
    "Watchful",
    "Workbench",
    "Workspaces",
]


class Clock(Protocol):
    """`now` is wall time for people; `boottime` never jumps and counts TTLs."""

    def now(self) -> float: ...
    def boottime(self) -> float: ...


@runtime_checkable
class EventSink(Protocol):
    """Receives what happened (`sandbox.created`, …); must not raise and must not block."""

    def emit(self, event: str, fields: Mapping[str, str | int | float | bool | None]) -> None: ...
