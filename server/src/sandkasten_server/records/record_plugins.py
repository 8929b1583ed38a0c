"""The records of a server in a shared database, as a plugin: one value that can be imported without
the library that it wraps.

A distribution brings one as an entry point of the group `sandkasten.records`, under the name of its
store (`ports.store_plugins`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from sandkasten.lazy_dataclass import dataclass
from sandkasten.ports.persistence import AuditLog, Keys, PublicPorts
from sandkasten.ports.plugin_interface import INTERFACE

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from sandkasten.model.audit_records import AuditHead
    from sandkasten.ports import Clock, FileStore, Journal, Runs
    from sandkasten.ports.store_plugins import SharedStore
    from sandkasten_runtime.store.audit_directory import AuditDirectory
    from sandkasten_runtime.store.record_rules import FileRules, Retention

RECORDS_GROUP: Final = "sandkasten.records"


class OpenKeys(Keys, Protocol):
    async def aclose(self) -> None:
        """Stop refreshing, and write when the keys were last used."""
        ...


class KeptAudit(AuditLog, Protocol):
    """The audit log of a daemon, which keeps it in order."""

    async def sync(self) -> AuditHead:
        """Make all records survive a power failure; return the newest."""
        ...

    async def prune(self, now: float) -> int:
        """Remove records past their retention; return how many parts were removed."""
        ...


class OpenPublicPorts(PublicPorts, Protocol):
    async def aclose(self) -> None:
        """Stop refreshing. Twice is fine."""
        ...


class SharedRecords(Protocol):
    """The records of a server in an open database. Nothing is read before a method is called, and
    closing a part does not close the database.
    """

    def journal(self, retention: Retention) -> Journal: ...
    async def keys(self) -> OpenKeys: ...
    def files(self, clock: Clock, rules: FileRules) -> AbstractAsyncContextManager[FileStore]:
        """Open the stored files for the block."""
        ...

    def audit(self, own: AuditDirectory, retention: Retention) -> KeptAudit:
        """Return the log of all daemons. `own`: the log of this one, which is closed with it."""
        ...

    async def public_ports(self) -> OpenPublicPorts: ...
    async def signing_key(self, name: str) -> bytes:
        """Return the key of this name that all daemons have, made at first use."""
        ...

    def runs(self) -> Runs: ...
    async def any_runs(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class RecordsPlugin:
    name: str
    """That of its store."""
    open: Callable[[SharedStore], SharedRecords]
    """Takes what the store of the same name has opened."""
    interface: int = INTERFACE
    """The version of the plugin interface that it was written for."""
