"""What the engine needs from the outside, as Protocols. No behaviour lives here.

A backend makes an isolated place, hands us a byte stream into it and removes it: seven
verbs over two Protocols. Only classes of `errors` leave an implementation.
"""

from __future__ import annotations

from sandkasten.ports.images import ImageLibrary, ImagePacker, ImageSource, KeepsImages, Watchful
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
from sandkasten.ports.keeping import FileStore, Journal, Keys, Store, Workspaces
from sandkasten.ports.provisioning import Provisioner, Site, Sites
from sandkasten.ports.running import Agents, Runs
from sandkasten.ports.surroundings import Clock, EventSink

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
    "ImagePacker",
    "ImageSource",
    "Journal",
    "KeepsImages",
    "Keys",
    "Pausable",
    "Provisioner",
    "Readable",
    "Reclaims",
    "Site",
    "Sites",
    "Store",
    "Watchful",
    "Workbench",
    "Workspaces",
]
