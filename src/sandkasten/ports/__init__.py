"""Protocols between rooms: what the engine needs, and what it offers. No behaviour lives here.

A backend makes an isolated place, hands us a byte stream into it and removes it: seven
verbs over two Protocols. Only classes of `errors` leave an implementation.
"""

from __future__ import annotations

from sandkasten.ports.agent_ports import Agents, Runs, TenantAgents
from sandkasten.ports.clock_and_events import Clock, EventSink
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
