"""Lines of `doctor` about the database of `store.url`: server, schema, rights and encryption."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from sandkasten.errors import SandkastenError
from sandkasten.model.sandbox.readiness import Requirement
from sandkasten_cluster_store.postgres.postgres_schema import postgres_migrations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase, Row

# Shorter than a probe may take, so that the other lines are shown too.
_TIMEOUT_S: Final = 3.0
# The ages of sandboxes that another daemon has made are as wrong as the clocks.
_CLOCK_S: Final = 2.0
_VERIFIED: Final = ("verify-ca", "verify-full")
_RIGHTS: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")
_SERVER = """
SELECT current_setting('server_version') AS server, pg_is_in_recovery() AS standby,
       current_user AS name, inet_client_addr() AS client, tls.version AS tls,
       (SELECT max(version) FROM schema_version) AS version,
       extract(epoch FROM clock_timestamp())::float8 AS now
FROM pg_stat_ssl AS tls WHERE tls.pid = pg_backend_pid()
"""
_MISSING_RIGHTS = """
SELECT DISTINCT wanted FROM pg_class, unnest($2::text[]) AS wanted
WHERE relnamespace = to_regnamespace($1) AND relkind = 'r'
      AND NOT has_table_privilege(pg_class.oid, wanted)
UNION ALL SELECT 'CREATE' WHERE NOT has_schema_privilege($1, 'CREATE')
ORDER BY wanted
"""


async def database_requirements(database: PostgresDatabase) -> Sequence[Requirement]:
    """Ask the server. A database that is unavailable is a line and not an error."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            asked_at = time.time()
            server = await database.fetch_one(_SERVER)
            answered_at = time.time()
            rights = await database.fetch(_MISSING_RIGHTS, database.schema, _RIGHTS)
    except SandkastenError as exc:
        return [Requirement("database", False, exc.message, exc.hint)]
    except TimeoutError:
        state = f"no answer in {_TIMEOUT_S:g} s"
        return [Requirement("database", False, state, "check the PostgreSQL server of store.url")]
    assert server is not None
    return [
        _answers(server),
        _schema(server["version"]),
        _rights(server["name"], database.schema, [row["wanted"] for row in rights]),
        encryption(
            local=server["client"] is None or server["client"].is_loopback,
            tls=server["tls"],
            sslmode=database.sslmode,
        ),
        *clock(server["now"], asked_at, answered_at),
    ]


def _answers(server: Row) -> Requirement:
    state = f"PostgreSQL {server['server']}"
    if server["standby"]:
        return Requirement(
            "database", False, f"{state}, a standby that cannot be written",
            "name the primary in store.url, or add target_session_attrs=primary",
        )  # fmt: skip
    return Requirement("database", True, state)


def _schema(version: int) -> Requirement:
    newest = postgres_migrations()[-1].version
    return Requirement(
        "database schema", version == newest, f"version {version}, this program has {newest}",
        "restart this daemon with the version that migrated the database",
    )  # fmt: skip


def _rights(user: str, schema: str, missing: Sequence[str]) -> Requirement:
    state = f"{user} lacks {', '.join(missing)}" if missing else f"{user} may read and write"
    remedy = f"make {user} the owner of the schema {schema} and of its tables"
    # An update of the program creates tables; until then CREATE is not needed.
    return Requirement("database rights", not missing, state, remedy, [*missing] != ["CREATE"])


def encryption(*, local: bool, tls: str | None, sslmode: str) -> Requirement:
    """Return the line for a connection. `tls`: its protocol, None if it is not encrypted."""
    checked = sslmode in _VERIFIED
    if tls is None:
        state = "none, on this machine" if local else "not encrypted"
    else:
        state = f"{tls}, the server is {'checked' if checked else 'not checked'}"
    ok = local or (tls is not None and checked)
    remedy = "add sslmode=verify-full&sslrootcert=FILE to store.url"
    return Requirement("database TLS", ok, state, remedy, required=False)


def clock(now: float, asked_at: float, answered_at: float) -> Sequence[Requirement]:
    """Return a line if the clock of the server, which was `now` between two times of this machine,
    is another one.
    """
    ahead_s = max(asked_at - now, 0.0) - max(now - answered_at, 0.0)
    if abs(ahead_s) <= _CLOCK_S:
        return ()
    where = "ahead of" if ahead_s > 0 else "behind"
    state = f"this machine is {abs(ahead_s):.0f} s {where} the database server"
    remedy = "synchronize both clocks (NTP): otherwise sessions of other daemons end early or late"
    return (Requirement("database clock", False, state, remedy, required=False),)
