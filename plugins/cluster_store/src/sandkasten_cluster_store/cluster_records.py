"""The records of a server in PostgreSQL. Implements `records.record_plugins.SharedRecords`."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sandkasten_cluster_store.postgres.postgres_audit import PostgresAudit
from sandkasten_cluster_store.postgres.postgres_files import PostgresFileStore
from sandkasten_cluster_store.postgres.postgres_journal import postgres_journal
from sandkasten_cluster_store.postgres.postgres_keys import PostgresKeys
from sandkasten_cluster_store.postgres.postgres_previews import PostgresPreviews, signing_key
from sandkasten_cluster_store.postgres.postgres_runs import PostgresRuns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkasten.ports import Clock
    from sandkasten_cluster_store.cluster_store import ClusterStore
    from sandkasten_runtime.store.audit_directory import AuditDirectory
    from sandkasten_runtime.store.record_rules import FileRules, Retention
    from sandkasten_server.records.sql_journal import SqlJournal


class ClusterRecords:
    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self._database = store.database

    def journal(self, retention: Retention) -> SqlJournal:
        store = self._store
        return postgres_journal(self._database, store.node, retention, shared=store.backends)

    async def keys(self) -> PostgresKeys:
        return await PostgresKeys.open(self._database)

    @asynccontextmanager
    async def files(self, clock: Clock, rules: FileRules) -> AsyncIterator[PostgresFileStore]:
        """Open the bucket of stored files too, if there is one."""
        options = self._store.bucket
        if options is None:
            yield PostgresFileStore(self._database, clock, rules)
            return
        # Imported here: they import an HTTP client, and most databases have the files.
        from sandkasten_cluster_store.bucket.bucket import Bucket
        from sandkasten_cluster_store.postgres.bucket_contents import BucketContents

        async with Bucket(options) as bucket:
            contents = await BucketContents.open(self._database, bucket)
            yield PostgresFileStore(self._database, clock, rules, contents)

    def audit(self, own: AuditDirectory, retention: Retention) -> PostgresAudit:
        return PostgresAudit(
            self._database,
            self._store.node,
            own,
            max_bytes=retention.audit_bytes,
            keep_s=retention.audit_s,
        )

    async def public_ports(self) -> PostgresPreviews:
        return await PostgresPreviews.open(self._database)

    async def signing_key(self, name: str) -> bytes:
        return await signing_key(self._database, name)

    def runs(self) -> PostgresRuns:
        return PostgresRuns(self._database)

    async def any_runs(self) -> bool:
        return await self._database.fetch_one("SELECT 1 FROM runs LIMIT 1") is not None
