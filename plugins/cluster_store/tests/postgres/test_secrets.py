"""Secrets in PostgreSQL, used by several daemons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandkasten.errors import (
    InvalidConfiguration,
    NotFound,
    StoreUnusable,
)
from sandkasten.model.access.stored_secrets import SecretRequest
from sandkasten_cluster_store.postgres.postgres_secrets import PostgresSecrets

pytestmark = pytest.mark.promise("P98")


REQUEST = SecretRequest("TOKEN", "s3cret-value", ("api.example.com",), header="X: {value}")


async def test_secrets_are_shared_with_one_key_and_encrypted(open_postgres):
    database = await open_postgres()
    one, other = (PostgresSecrets(each, "k" * 32) for each in (database, await open_postgres()))
    stored = await one.put("acme", REQUEST)
    assert list(await other.list("acme")) == [stored]
    (opened,) = await other.open("acme", ["TOKEN"])
    assert opened.value == "s3cret-value"
    again = await other.put("acme", replace(REQUEST, value="new"))
    assert (again.placeholder, again.created_at) == (stored.placeholder, stored.created_at)
    with pytest.raises(StoreUnusable, match="cannot be decrypted"):
        await PostgresSecrets(database, "x" * 32).open("acme", ["TOKEN"])
    with pytest.raises(NotFound):
        await one.open("default", ["TOKEN"])
    # A value is bound to its tenant: a row that was moved in the database cannot be decrypted.
    await database.execute("UPDATE secrets SET tenant = 'other'")
    with pytest.raises(StoreUnusable):
        await one.open("other", ["TOKEN"])
    await one.remove("other", "TOKEN")
    with pytest.raises(NotFound):
        await one.remove("other", "TOKEN")
    with pytest.raises(InvalidConfiguration, match="key that all daemons have"):
        await PostgresSecrets(database, None).put("acme", REQUEST)
