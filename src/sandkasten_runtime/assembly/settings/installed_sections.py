"""The sections of settings that are read: those of the core, of backends, and of other plugins.

A plugin that declares a setting, variable or key of another part is not used: neither its settings
nor its backend. It is reported as a problem, one sentence.
"""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Final

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.optional_extras import DISTRIBUTIONS
from sandkasten.plugins.entry_points import entry_points
from sandkasten.plugins.installed import installed
from sandkasten.ports.backend_plugins import BACKENDS_GROUP, BackendPlugin
from sandkasten.ports.pull_limits import PullLimits
from sandkasten.ports.settings_plugins import SETTINGS_GROUP, SettingsPlugin
from sandkasten.ports.store_plugins import STORES_GROUP, StorePlugin
from sandkasten.settings.setting_conflicts import conflicts
from sandkasten.settings.setting_fields import settings_of
from sandkasten_runtime.assembly.settings.core_settings import (
    AuditSettings,
    GeneralSettings,
    ImageSettings,
    PolicySettings,
    RegistrySettings,
)
from sandkasten_runtime.assembly.settings.limit_settings import (
    DiskSettings,
    FixedDefaults,
    LimitCeilings,
    LimitDefaults,
    SnapshotSettings,
    WorkspaceSettings,
)
from sandkasten_runtime.assembly.settings.network_settings import (
    NetworkLimitSettings,
    NetworkSettings,
)
from sandkasten_runtime.assembly.settings.secret_settings import SecretSettings
from sandkasten_runtime.assembly.settings.unknown_settings import OTHER_VARIABLES
from sandkasten_runtime.backends import backend_catalog
from sandkasten_runtime.engine.pool.pool_rules import PoolRules
from sandkasten_runtime.store.record_rules import Retention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.plugins.entry_points import EntryPoint
    from sandkasten.plugins.installed import Installed
    from sandkasten.settings.setting_fields import Section

CORE_SECTIONS: Final[tuple[type[Section], ...]] = (
    GeneralSettings,
    LimitDefaults,
    FixedDefaults,
    PolicySettings,
    LimitCeilings,
    WorkspaceSettings,
    SnapshotSettings,
    DiskSettings,
    NetworkSettings,
    NetworkLimitSettings,
    SecretSettings,
    ImageSettings,
    PullLimits,
    RegistrySettings,
    PoolRules,
    AuditSettings,
    Retention,
)


@dataclass(frozen=True, slots=True)
class InstalledSections:
    backends: tuple[BackendPlugin, ...]
    stores: tuple[StorePlugin, ...]
    settings: tuple[SettingsPlugin, ...]
    problems: tuple[str, ...]
    """One sentence for each plugin that is installed and cannot be used."""


def installed_sections() -> InstalledSections:
    """Return the plugins of this process whose settings are read."""
    stores = installed(STORES_GROUP, StorePlugin, unusable_store)
    settings = installed(SETTINGS_GROUP, SettingsPlugin, unusable)
    usable = without_conflicts(backend_catalog.CORE, backend_catalog.INSTALLED, stores, settings)
    return replace(usable, problems=(*entry_points().problems, *usable.problems))


def without_conflicts(
    core: tuple[BackendPlugin, ...],
    backends: Installed[BackendPlugin],
    stores: Installed[StorePlugin],
    settings: Installed[SettingsPlugin],
) -> InstalledSections:
    """Return the plugins without those that declare something of another part.

    If both plugins are from outside this project, both are refused.
    """
    parts = [
        *(
            _Part(BACKENDS_GROUP, backends.origins[plugin.name], plugin, _section_of(plugin))
            for plugin in backends.plugins
        ),
        *(
            _Part(STORES_GROUP, stores.origins[plugin.name], plugin, plugin.settings)
            for plugin in stores.plugins
        ),
        *(
            _Part(SETTINGS_GROUP, settings.origins[plugin.name], plugin, plugin.sections)
            for plugin in settings.plugins
        ),
    ]
    own = [part for part in parts if part.entry.distribution in DISTRIBUTIONS]
    others = [part for part in parts if part not in own]
    sections = [*CORE_SECTIONS, *(section for plugin in core for section in _section_of(plugin))]
    refused = _refused(sections, own)
    if others:
        sections += [section for part in own for section in part.sections]
        refused |= _refused(sections, others)
    usable = [part.plugin for part in parts if str(part) not in refused]
    return InstalledSections(
        (*core, *(plugin for plugin in usable if isinstance(plugin, BackendPlugin))),
        tuple(plugin for plugin in usable if isinstance(plugin, StorePlugin)),
        tuple(plugin for plugin in usable if isinstance(plugin, SettingsPlugin)),
        (
            *backends.problems,
            *stores.problems,
            *settings.problems,
            *(f"{part} {conflict}" for part, conflict in refused.items()),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    group: str
    entry: EntryPoint
    plugin: BackendPlugin | StorePlugin | SettingsPlugin
    sections: tuple[type[Section], ...]

    def __str__(self) -> str:
        return f"{self.group}: {self.entry}"


def _section_of(plugin: BackendPlugin) -> tuple[type[Section], ...]:
    return () if plugin.settings is None else (plugin.settings,)


def _refused(sections: Sequence[type[Section]], parts: Sequence[_Part]) -> dict[str, str]:
    return conflicts(sections, {str(part): part.sections for part in parts}, OTHER_VARIABLES)


def unusable(plugin: SettingsPlugin) -> str | None:
    """Return why a plugin of settings cannot be used, as the rest of a sentence."""
    for section in plugin.sections:
        for name in _names(section):
            # These belong to the backend with that name.
            if name.startswith("backends."):
                return f"has the setting {name}, which only a plugin of a backend may have"
    return _outside(plugin.sections, plugin.prefixes)


def unusable_store(plugin: StorePlugin) -> str | None:
    """Return why a plugin of a shared database cannot be used, as the rest of a sentence."""
    return _outside(plugin.settings, ("store",))


def _outside(sections: Sequence[type[Section]], prefixes: Sequence[str]) -> str | None:
    """Return what is wrong with sections whose settings must have one of the prefixes."""
    for section in sections:
        if not is_dataclass(section):
            return "has a section that is not a dataclass"
        for name in _names(section):
            if not any(f"{name}.".startswith(f"{prefix}.") for prefix in prefixes):
                allowed = ", ".join(prefixes)
                return f"has the setting {name}, which must be or be below one of: {allowed}"
    return None


def _names(section: type[Section]) -> list[str]:
    return [setting.name for setting in settings_of(section)] if is_dataclass(section) else []
