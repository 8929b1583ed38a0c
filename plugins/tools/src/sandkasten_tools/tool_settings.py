"""Settings of the tools of agents, which runs and clients have in common."""

from __future__ import annotations

from typing import Final

from sandkasten.lazy_dataclass import dataclass
from sandkasten.ports.settings_plugins import SettingsPlugin
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import positive_integer


@dataclass(frozen=True, slots=True)
class ToolSettings:
    max_sandboxes: int = setting(
        "agents.max_sandboxes",
        positive_integer,
        32,
        "Most sandboxes of one run of an agent, and of one client of sandkasten mcp.",
    )


PLUGIN: Final = SettingsPlugin("tools", ("agents.max_sandboxes",), (ToolSettings,))
