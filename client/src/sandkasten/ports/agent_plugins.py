"""Agents in this process, as a plugin: one value that can be imported without what runs them.

A distribution names one as an entry point of the group `sandkasten.local_agents`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sandkasten.lazy_dataclass import dataclass
from sandkasten.ports.plugin_interface import INTERFACE

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from sandkasten.ports.agent_ports import Agents

AGENTS_GROUP: Final = "sandkasten.local_agents"


@dataclass(frozen=True, slots=True)
class AgentsPlugin:
    name: str
    open: Callable[[Any, Any], AbstractAsyncContextManager[Agents]]
    """Takes all settings, and what opens the stored files of a daemon that serves the same data
    directory. What still runs at the end of the block is cancelled.
    """
    interface: int = INTERFACE
    """The version of the plugin interface that it was written for."""
