"""What a plugin of a backend must comply with, beyond being a `BackendPlugin`.

Each rule keeps a plugin to its own name: settings, backends and keys of another part are not its.
A broken rule is a sentence about the plugin; nothing is raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.settings.setting_fields import settings_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from sandkasten.ports.backend_plugins import BackendPlugin


def unusable(plugin: BackendPlugin, core: Collection[str]) -> str | None:
    """Return why a plugin cannot be used, as the rest of a sentence. `core`: the names of the
    backends of the core.
    """
    if plugin.name in core:
        return f"has the name {plugin.name}, which a backend of the core has"
    return _invalid_settings(plugin)


def foreign_names(plugin: BackendPlugin, names: Iterable[str]) -> list[str]:
    """Return the names that are neither the plugin's own nor below it (`NAME/OTHER`)."""
    below = f"{plugin.name}/"
    return [name for name in names if name != plugin.name and not name.startswith(below)]


def _invalid_settings(plugin: BackendPlugin) -> str | None:
    """Return what is wrong with a section that cannot be read, or has settings of others."""
    keys: set[str] = set()
    if plugin.settings is not None:
        try:
            declared = settings_of(plugin.settings)
        except TypeError:
            return "has settings that are not a dataclass"
        for setting in declared:
            if not setting.name.startswith(f"backends.{plugin.name}."):
                return (
                    f"has the setting {setting.name}, which must begin with backends.{plugin.name}."
                )
            keys.update(setting.keys)
        if not callable(getattr(plugin.settings, "completed", None)):
            return "has settings without a method named completed"
    for key in plugin.selecting_keys:
        if key not in keys:
            return f"is selected by the key {key}, which is not a key of its settings"
    return None
