"""The database that several daemons share, as a plugin: one value that can be imported without the
library that it wraps.

A distribution brings one as an entry point of the group `sandkasten.stores`. It is active if its
settings name a database, and at most one may be. What only a server asks of that database is
another plugin with the same name, of the group `sandkasten.records` (`records.record_plugins`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from sandkasten.lazy_dataclass import dataclass
from sandkasten.ports.plugin_interface import INTERFACE
from sandkasten.settings.setting_fields import Section

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from sandkasten.ports.persistence import Secrets, Store, Workspaces

STORES_GROUP: Final = "sandkasten.stores"
S = TypeVar("S", bound=Section)


class SectionValues(Protocol):
    """The settings in effect, by their section."""

    def of(self, section: type[S]) -> S: ...


class SharedStore(Protocol):
    """A shared database that is open in this process: the records that an engine asks for."""

    def ledger(self, *, closes_store: bool) -> Store:
        """Return the ledger, as this node sees it. With `closes_store`, closing it also closes the
        database.
        """
        ...

    def workspaces(self, local: Workspaces) -> Workspaces:
        """Return the workspaces of shared backends, and those of this machine (`local`)."""
        ...

    def secrets(self) -> Secrets: ...
    def summary(self) -> Mapping[str, str]:
        """Return what is shared with other daemons and where, for the log. Contains no secret."""
        ...

    async def aclose(self) -> None:
        """Close every connection; locks that are held end. Twice is fine."""
        ...


@dataclass(frozen=True, slots=True)
class StoreContext:
    """Values that a plugin gets to open its database."""

    settings: SectionValues
    node: Callable[[], Awaitable[str]]
    """Returns the id of this data directory, and makes it at the first call. Called when the
    database has answered: from then on an engine with another ledger is refused.
    """
    shared_backends: frozenset[str]
    """Backends whose sandboxes every daemon of the database can reach."""
    secrets_key: str | None
    """The key of stored secrets, if one is configured."""


@dataclass(frozen=True, slots=True)
class StorePlugin:
    name: str
    is_active: Callable[[SectionValues], bool]
    """Whether the settings name a database of this plugin."""
    open: Callable[[StoreContext], Awaitable[SharedStore]]
    """Connects, and announces to other daemons that this node lives. Raises BackendUnavailable if
    the database cannot be reached, and then changes nothing.
    """
    settings: tuple[type[Section], ...] = ()
    """Its sections, whose settings begin with `store.`."""
    interface: int = INTERFACE
    """The version of the plugin interface that it was written for."""
