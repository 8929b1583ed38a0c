"""A backend as a plugin: one value that can be imported without the library that it wraps.

A distribution names one as an entry point of the group `sandkasten.backends`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

from sandkasten.lazy_dataclass import dataclass
from sandkasten.ports.plugin_interface import INTERFACE
from sandkasten.settings.setting_fields import Section

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Self

    from sandkasten.model.backends.capabilities import Capabilities
    from sandkasten.model.backends.named_backends import NamedBackendRules
    from sandkasten.ports import EventSink
    from sandkasten.ports.image_ports import ImagePacker
    from sandkasten.ports.isolation import Backend
    from sandkasten.ports.pull_limits import PullLimits
    from sandkasten.settings.setting_fields import Origin

BACKENDS_GROUP: Final = "sandkasten.backends"
S = TypeVar("S", bound=Section)


class CompletedSections(Protocol):
    def __call__(self, section: type[S]) -> S: ...


@dataclass(frozen=True, slots=True)
class SettingContext:
    """What a section of a plugin may depend on besides its own settings."""

    environ: Mapping[str, str]
    origins: Mapping[str, Origin]
    """Where each setting of a plugin came from, by its name."""
    default_backend: str
    longest_life_s: float
    """How long a sandbox may live at most, with its time in the warm pool."""
    data_dir: Path
    of: CompletedSections
    """Returns another section, completed. Two sections must not ask for each other."""


class PluginSettings(Section, Protocol):
    """The section of a plugin: its options, each field declared by `setting`."""

    def completed(self, context: SettingContext) -> Self:
        """Return the options in effect. Raise InvalidConfiguration for settings that contradict."""
        ...


@runtime_checkable
class NamesBackends(Protocol):
    """A section that configures further backends, `NAME/OTHER`, with rules for their choice.

    `Capabilities.named_by` is the key of that setting.
    """

    def named_backends(self) -> Mapping[str, NamedBackendRules]: ...


@dataclass(frozen=True, slots=True)
class BackendContext:
    """Values that a plugin gets to open its backends."""

    data_dir: Path
    settings: Any
    """The section of the plugin, completed; None if it has none."""
    read_yaml: Callable[[Path], object]
    """Reads a YAML file of bounded depth and size."""
    packer: Callable[[], ImagePacker]
    """Returns what packs images of the store for a platform with images of its own."""
    pull_limits: PullLimits
    events: EventSink


def _never(settings: object) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class BackendPlugin:
    name: str
    capabilities: Capabilities
    """Without settings: what it can do where they open everything."""
    open: Callable[[BackendContext], Mapping[str, Backend]]
    """Returns its backends by name: its own, and perhaps some below it, `NAME/OTHER`."""
    interface: int = INTERFACE
    """The version of the plugin interface that it was written for."""
    settings: type[PluginSettings] | None = None
    """Its section, whose settings begin with `backends.NAME.`."""
    selecting_keys: tuple[str, ...] = ()
    """Keys of its own settings that make it the default backend where no other is set."""
    shares: Callable[[Any], bool] = _never
    """Whether, with this section, every daemon of `store.url` can reach its sandboxes."""
