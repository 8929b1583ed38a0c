"""Secrets in PostgreSQL, encrypted by the daemon. Implements `ports.Secrets`.

Values are bound to tenant, name and hosts as in files (`store.secret_directory`). All daemons need
the same key, so it must be configured: the key of one data directory is unknown to the others.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sandkasten.errors import InvalidConfiguration
from sandkasten.model.access.stored_secrets import OpenSecret, Secret, no_such_secret
from sandkasten.model.access.tenancy import checked_tenant
from sandkasten.model.json_codec import ShapeError, from_json, to_json
from sandkasten_runtime.store.secret_directory import (
    check_count,
    damaged_secret,
    seal,
    secret_of,
    unseal,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.access.stored_secrets import SecretRequest
    from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase


class PostgresSecrets:
    def __init__(self, database: PostgresDatabase, key: str | None) -> None:
        self._database = database
        self._key = key

    async def put(self, tenant: str, request: SecretRequest) -> Secret:
        key = self._key_bytes()
        async with self._database.transaction() as connection:
            turn = self._database.lock_key(f"secrets:{checked_tenant(tenant)}")
            await connection.execute("SELECT pg_advisory_xact_lock($1)", turn)
            text = await connection.fetchval(
                "SELECT secret FROM secrets WHERE tenant = $1 AND name = $2", tenant, request.name
            )
            if text is None:
                check_count(
                    await connection.fetchval(
                        "SELECT count(*) FROM secrets WHERE tenant = $1", tenant
                    )
                )
            secret = secret_of(request, None if text is None else _read(request.name, text))
            await connection.execute(
                "INSERT INTO secrets (tenant, name, secret, sealed) VALUES ($1, $2, $3, $4)"
                " ON CONFLICT (tenant, name) DO UPDATE SET secret = excluded.secret,"
                " sealed = excluded.sealed",
                tenant,
                request.name,
                json.dumps(to_json(secret)),
                seal(key, tenant, secret, request.value),
            )
        return secret

    async def list(self, tenant: str) -> Sequence[Secret]:
        rows = await self._database.fetch(
            "SELECT name, secret FROM secrets WHERE tenant = $1 ORDER BY name", tenant
        )
        return [_read(row["name"], row["secret"]) for row in rows]

    async def remove(self, tenant: str, name: str) -> None:
        sql = "DELETE FROM secrets WHERE tenant = $1 AND name = $2"
        if not await self._database.execute(sql, tenant, name):
            raise no_such_secret(name)

    async def open(self, tenant: str, names: Sequence[str]) -> Sequence[OpenSecret]:
        if not names:
            return ()
        fetched = await self._database.fetch(
            "SELECT name, secret, sealed FROM secrets WHERE tenant = $1 AND name = ANY($2)",
            tenant,
            [*names],
        )
        rows = {record["name"]: record for record in fetched}
        opened = []
        for name in names:
            row = rows.get(name)
            if row is None:
                raise no_such_secret(name)
            secret = _read(name, row["secret"])
            if secret.name != name:
                raise damaged_secret(name)
            value = unseal(self._key_bytes(), tenant, secret, bytes(row["sealed"]))
            opened.append(OpenSecret(secret, value))
        return opened

    def _key_bytes(self) -> bytes:
        if self._key is None:
            raise InvalidConfiguration(
                "secrets in a shared database require a key that all daemons have",
                hint="set secrets.key_file to a file with the same content for each daemon",
                setting="secrets.key_file",
            )
        return self._key.encode()


def _read(name: str, text: str) -> Secret:
    try:
        return from_json(Secret, json.loads(text), "secret")
    except (ValueError, TypeError, KeyError, ShapeError):
        raise damaged_secret(name) from None
