"""A backend as a plugin: one value that can be imported without the library that it wraps.

Distributions of other projects bring one as an entry point of the group `sandkasten.backends`. What
they may rely on is this module, `ports`, `errors`, `model.backends`, `LazyBackend`, and the runner
protocol; `INTERFACE` changes when one of these changes in a way that plugins notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from sandkasten.model.backends.capabilities import Capabilities
    from sandkasten.model.images.pull_rules import PullLimits
    from sandkasten.ports import EventSink
    from sandkasten.ports.image_ports import ImagePacker
    from sandkasten.ports.isolation import Backend

INTERFACE: Final = 1


@dataclass(frozen=True, slots=True)
class BackendContext:
    """What a plugin gets to open its backends."""

    data_dir: Path
    settings: Callable[[str], Any]
    """Returns a section or value of the settings by its name."""
    read_yaml: Callable[[Path], object]
    """Reads a YAML file of bounded depth and size."""
    packer: Callable[[], ImagePacker]
    """Returns what packs images of the store for an engine with images of its own."""
    pull_limits: PullLimits
    events: EventSink


@dataclass(frozen=True, slots=True)
class BackendPlugin:
    name: str
    capabilities: Capabilities
    """Without settings: what it can do where they open everything."""
    open: Callable[[BackendContext], Mapping[str, Backend]]
    """Returns its backends by name: its own, and perhaps some below it, `NAME/OTHER`."""
    interface: int = INTERFACE
    """The version of this interface that it was written for."""
