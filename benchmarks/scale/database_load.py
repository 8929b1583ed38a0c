"""What a PostgreSQL server was asked, by `pg_stat_statements`."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.scale.processes import family, processor_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.postgres_server import PostgresServer

_SETTINGS: Final = """
max_connections = 400
shared_preload_libraries = 'pg_stat_statements'
pg_stat_statements.track_utility = off
"""
_COUNTS: Final = "SELECT query, calls, rows FROM pg_stat_statements WHERE query !~ 'pg_stat_'"
_SPACE: Final = re.compile(r"\s+")
_SHOWN: Final = 90


@dataclass(frozen=True, slots=True)
class Load:
    """What was asked until now. The difference of two is what was asked between them."""

    calls: Counter[str]
    rows: Counter[str]
    processor_s: float

    def __sub__(self, other: Load) -> Load:
        calls, rows = Counter(self.calls), Counter(self.rows)
        calls.subtract(other.calls)
        rows.subtract(other.rows)
        return Load(calls, rows, self.processor_s - other.processor_s)

    @property
    def statements(self) -> int:
        return sum(self.calls.values())

    @property
    def all_rows(self) -> int:
        return sum(self.rows.values())


class DatabaseLoad:
    """Counts statements of a server that this makes count them."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._connection: Any = None

    async def __aenter__(self) -> DatabaseLoad:
        import asyncpg

        self._server.stop()
        with (self._server.place / "data" / "postgresql.conf").open("a") as file:
            file.write(_SETTINGS)
        self._server.start()
        self._connection = await asyncpg.connect(self._server.url)
        await self._connection.execute("CREATE EXTENSION pg_stat_statements")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()

    @property
    def pid(self) -> int:
        return int((self._server.place / "data" / "postmaster.pid").read_text().split()[0])

    async def read(self) -> Load:
        calls: Counter[str] = Counter()
        rows: Counter[str] = Counter()
        for query, count, returned in await self._connection.fetch(_COUNTS):
            name = _SPACE.sub(" ", query).strip()[:_SHOWN]
            calls[name] += count
            rows[name] += returned
        return Load(calls, rows, processor_s(*family(self.pid), children=True))

    async def copy(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Copy the rows of sessions: for each pair, those of the first id for the second."""
        olds, news = zip(*pairs, strict=True)
        for table, text in (("ledger", ("row",)), ("sessions", ())):
            sql = (
                "SELECT column_name FROM information_schema.columns"
                f" WHERE table_name = '{table}' AND is_generated = 'NEVER'"
            )
            names = [row[0] for row in await self._connection.fetch(sql)]
            values = ", ".join(
                "copy" if name == "id" else f"replace({name}, old, copy)" if name in text else name
                for name in names
            )
            await self._connection.execute(
                f"INSERT INTO sandkasten.{table} ({', '.join(names)}) SELECT {values}"
                f" FROM unnest($1::text[], $2::text[]) AS pairs (old, copy)"
                f" JOIN sandkasten.{table} ON id = old",
                olds,
                news,
            )

    async def connections(self) -> int:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        return int(await self._connection.fetchval(sql)) - 1
