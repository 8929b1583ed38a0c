"""What `doctor` says about the database of `store.url`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import BackendUnavailable
from sandkasten_cluster_store.postgres.database_requirements import (
    clock,
    database_requirements,
    encryption,
)
from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase
from sandkasten_cluster_store.postgres.postgres_schema import postgres_migrations
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from tests.api.daemon_in_process import serving
from tests.postgres_server import PostgresServer, new_schema

if TYPE_CHECKING:
    from sandkasten.model.sandbox.readiness import Requirement

pytestmark = pytest.mark.promise("P98")
VERSION = postgres_migrations()[-1].version
NAMES = ("database", "database schema", "database rights", "database TLS")


@pytest.fixture(scope="module")
def tls_server():
    with PostgresServer(tls=True) as server:
        yield server


async def lines(url: str, schema: str = "test") -> dict[str, Requirement]:
    database = await PostgresDatabase.open(url, schema=schema, timeout_s=5.0)
    try:
        return {one.name: one for one in await database_requirements(database)}
    finally:
        await database.aclose()


async def test_a_good_database_has_four_good_lines(postgres_server):
    found = await lines(postgres_server.url)
    assert tuple(found) == NAMES
    assert all(one.ok for one in found.values())
    assert found["database"].state.startswith("PostgreSQL ")
    assert found["database schema"].state == f"version {VERSION}, this program has {VERSION}"
    assert found["database rights"].state == "tester may read and write"
    assert found["database TLS"].state == "none, on this machine"


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("sslmode=verify-full&sslrootcert={ca}", "the server is checked"),
        ("sslmode=require", "the server is not checked"),
    ],
)
async def test_doctor_says_whether_the_server_was_checked(tls_server, query, told):
    url = f"postgresql://tester@localhost:{tls_server.port}/postgres?{query}"
    state = (await lines(url.format(ca=tls_server.authority)))["database TLS"].state
    protocol, _, checked = state.partition(", ")
    assert (protocol[:5], checked) == ("TLSv1", told)


async def test_a_server_with_another_certificate_is_refused(tls_server, tmp_path):
    with PostgresServer(tls=True) as other:
        query = f"sslmode=verify-full&sslrootcert={other.authority}"
        url = f"postgresql://tester@localhost:{tls_server.port}/postgres?{query}"
        with pytest.raises(BackendUnavailable):
            await PostgresDatabase.open(url, timeout_s=5.0)


@pytest.mark.parametrize(
    ("tls", "sslmode", "ok", "state"),
    [
        (None, "disable", False, "not encrypted"),
        ("TLSv1.3", "require", False, "TLSv1.3, the server is not checked"),
        ("TLSv1.3", "verify-full", True, "TLSv1.3, the server is checked"),
    ],
)
def test_a_server_on_another_machine_must_be_checked(tls, sslmode, ok, state):
    found = encryption(local=False, tls=tls, sslmode=sslmode)
    assert (found.ok, found.state, found.required) == (ok, state, False)


async def test_missing_rights_are_named(postgres_server, open_new_schema):
    owner = await open_new_schema()
    user = new_schema()
    await owner.execute(f"CREATE ROLE {user} LOGIN")
    await owner.execute(f"GRANT USAGE ON SCHEMA {owner.schema} TO {user}")
    await owner.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {owner.schema} TO {user}")
    url = postgres_server.url.replace("tester@", f"{user}@")
    found = (await lines(url, owner.schema))["database rights"]
    assert (found.ok, found.required) == (False, True)
    assert found.state == f"{user} lacks CREATE, DELETE, INSERT, UPDATE"
    await owner.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {owner.schema} TO {user}")
    found = (await lines(url, owner.schema))["database rights"]
    assert (found.ok, found.required, found.state) == (False, False, f"{user} lacks CREATE")


async def test_a_database_that_is_away_makes_the_machine_not_ready(tmp_path):
    flags = {"data_dir": str(tmp_path / "data"), "backend": "unisolated"}
    with PostgresServer() as server:
        settings = load(flags, {"SANDKASTEN_STORE_URL": server.url}, tmp_path)
        engine = await open_engine(settings)
        try:
            found = await engine.probe()
            assert found.ready
            assert [one.name for one in found.requirements[-4:]] == [*NAMES]
            server.stop()
            found = await engine.probe()
            assert not found.ready
            assert found.reason.startswith("database: the database does not answer")
            assert "store.url" in found.remedy
            # A daemon still serves its sandboxes then.
            async with serving(engine) as daemon:
                told = await daemon.ask("GET", "/readyz")
                assert (told.status, told.json["code"]) == (503, "BACKEND_UNAVAILABLE")
                assert "database: the database does not answer" in told.json["message"]
                assert (await daemon.ask("GET", "/healthz")).status == 200
        finally:
            await engine.aclose()


@pytest.mark.parametrize(
    ("now", "state"),
    [
        (100.0, None),
        (103.5, None),
        (98.5, None),
        (90.0, "this machine is 10 s ahead of the database server"),
        (3703.0, "this machine is 3600 s behind the database server"),
    ],
)
def test_doctor_says_that_a_clock_is_wrong(now, state):
    found = [one.state for one in clock(now, asked_at=100.0, answered_at=103.0)]
    assert found == ([] if state is None else [state])
