"""Settings as a plugin: sections of a part that is not a backend.

A distribution names one as an entry point of the group `sandkasten.settings`. The sections are
read with all others, and `Settings.of(SECTION)` returns each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.lazy_dataclass import dataclass
from sandkasten.ports.plugin_interface import INTERFACE

if TYPE_CHECKING:
    from sandkasten.settings.setting_fields import Section

SETTINGS_GROUP: Final = "sandkasten.settings"


@dataclass(frozen=True, slots=True)
class SettingsPlugin:
    name: str
    prefixes: tuple[str, ...]
    """Each of its settings is one of these names, or begins with one and a dot."""
    sections: tuple[type[Section], ...]
    """In the order of the reference page. One that has a method `completed`, as in
    `PluginSettings`, is completed by it.
    """
    interface: int = INTERFACE
    """The version of the plugin interface that it was written for."""
