"""A PostgreSQL database as the store of several daemons. Implements `ports.store_plugins`."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final

from sandkasten.lazy_dataclass import dataclass
from sandkasten_cluster_store.bucket.bucket_options import BucketOptions
from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase
from sandkasten_cluster_store.postgres.postgres_ledger import PostgresLedger
from sandkasten_cluster_store.postgres.postgres_secrets import PostgresSecrets
from sandkasten_cluster_store.postgres.postgres_workspaces import PostgresWorkspaces
from sandkasten_cluster_store.postgres.shard_leases import ShardLeases
from sandkasten_cluster_store.store_settings import StoreSettings, without_password

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.ports.persistence import Workspaces
    from sandkasten.ports.store_plugins import StoreContext

# For the log; docs/guides/several-daemons.md has the same list.
_SHARED: Final = (
    "API keys",
    "history",
    "stored files",
    "secrets",
    "runs",
    "audit log",
    "previews",
    "network bytes of tenants",
)
_OF_ONE_NODE: Final = (
    "other sandboxes and quotas of them",
    "other workspaces",
    "images",
    "packages",
    "recordings",
)


@dataclass(frozen=True, slots=True)
class ClusterStore:
    database: PostgresDatabase
    node: str
    url: str
    """Without its password."""
    bucket: BucketOptions | None = None
    """The bucket for the content of stored files."""
    backends: frozenset[str] = frozenset()
    """Backends whose sandboxes every daemon of the database can reach."""
    leases: ShardLeases | None = None
    """Which of these sandboxes are leased to this daemon."""
    secrets_key: str | None = field(default=None, repr=False)

    def ledger(self, *, closes_store: bool) -> PostgresLedger:
        return PostgresLedger(
            self.database,
            self.node,
            shared=self.backends,
            leases=self.leases,
            owns_database=closes_store,
            bucket=self.bucket,
        )

    def workspaces(self, local: Workspaces) -> PostgresWorkspaces:
        return PostgresWorkspaces(self.database, local, self.backends)

    def secrets(self) -> PostgresSecrets:
        return PostgresSecrets(self.database, self.secrets_key)

    def summary(self) -> Mapping[str, str]:
        shared = (
            *_SHARED,
            *(f"sandboxes and workspaces of {backend}" for backend in self.backends),
        )
        summary = {
            "database": self.url,
            "node": self.node,
            "shared": ", ".join(shared),
            "of_this_daemon": ", ".join(_OF_ONE_NODE),
        }
        if self.bucket is not None:
            summary["bucket"] = self.bucket.location
        return summary

    async def aclose(self) -> None:
        await self.database.aclose()


async def open_cluster_store(context: StoreContext) -> ClusterStore:
    """Connect, migrate the schema, and announce to other daemons that this node lives."""
    rules = context.settings.of(StoreSettings)
    bucket = context.settings.of(BucketOptions)
    assert rules.url is not None
    database = await PostgresDatabase.open(
        rules.url, max_connections=rules.max_connections, timeout_s=rules.timeout_s
    )
    try:
        node = await context.node()
        leases = ShardLeases(node) if context.shared_backends else None
        await database.live_as(node, leases)
    except BaseException:
        await database.aclose()
        raise
    return ClusterStore(
        database=database,
        node=node,
        url=without_password(rules.url),
        bucket=bucket if bucket.bucket else None,
        backends=context.shared_backends,
        leases=leases,
        secrets_key=context.secrets_key,
    )
