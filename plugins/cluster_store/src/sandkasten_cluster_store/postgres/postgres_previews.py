"""Previews in PostgreSQL: the key of links, revoked links, public ports and rules of sandboxes.

A copy in memory answers requests, so that previews go on while the database is unavailable. A
change is committed before it is acknowledged, and works here from then on. The database notifies
other daemons; if a notification is lost, they read all rows again within `RELOAD_S`. A request that
would be refused reads the row of its sandbox first (`reload`), so a link works everywhere at once.
Every client can cause such requests: those that wait are read together, by one statement at a time.
A row is removed together with that of its sandbox in the ledger.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import asdict, field, replace
from typing import TYPE_CHECKING, Final

from sandkasten.errors import BackendUnavailable, QuotaExceeded, SessionNotFound
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.access.preview_links import SandboxPreviews
from sandkasten_cluster_store.postgres.postgres_database import RELOAD_S, Refresher
from sandkasten_server.records.preview_directory import MAX_REVOKED, too_many_revoked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sandkasten.model.access.preview_links import PreviewTarget
    from sandkasten_cluster_store.postgres.postgres_database import PostgresDatabase

_TOPIC: Final = "previews"
# A limit for one sandbox. An application has a handful.
MAX_PUBLIC: Final = 200
_EMPTY: Final = "{}"
_READ: Final = (
    "SELECT sandbox_id, row FROM previews WHERE $1::text[] IS NULL OR sandbox_id = ANY($1)"
)


@dataclass(frozen=True, slots=True)
class _Row:
    """The rules for the ports of one sandbox."""

    public: dict[str, float | None] = field(default_factory=dict)
    """Public ports, and when each becomes private; None: with its sandbox."""
    revoked: dict[str, float] = field(default_factory=dict)
    """Links that were revoked, and when each would have expired."""
    series: int = 0
    """How often all links were revoked."""
    rules: SandboxPreviews = SandboxPreviews()


_NOTHING: Final = _Row()


@dataclass(slots=True)
class _Reload:
    """Rows that are read by one statement, for all requests that wait for it."""

    sandbox_ids: set[str] = field(default_factory=set)
    is_done: bool = False
    failure: BackendUnavailable | None = None


class PostgresPreviews:
    """Create with `open`."""

    def __init__(self, database: PostgresDatabase, key: bytes, reload_s: float) -> None:
        self.key = key
        self._database = database
        self._rows: dict[str, _Row] = {}
        self._changes = 0
        self._changed_elsewhere: set[str] = set()
        self._loading = asyncio.Lock()
        self._next_reload = _Reload()
        # Before the refresher, which is woken by the same notice.
        database.subscribe(_TOPIC, self._note)
        self._refresher = Refresher(database, _TOPIC, self._refresh, reload_s)

    @classmethod
    async def open(cls, database: PostgresDatabase, reload_s: float = RELOAD_S) -> PostgresPreviews:
        previews = cls(database, await signing_key(database, "previews"), reload_s)
        try:
            await previews._load(None)
        except BaseException:
            await previews.aclose()
            raise
        return previews

    async def aclose(self) -> None:
        """Stop refreshing. Twice is fine."""
        self._database.unsubscribe(_TOPIC, self._note)
        await self._refresher.aclose()

    def is_public(self, target: PreviewTarget, now: float) -> bool:
        until = self._row(target.sandbox_id).public.get(str(target.port), 0.0)
        return until is None or now < until

    def public_until(self, target: PreviewTarget) -> float | None:
        """Return when a public port becomes private; None: with its sandbox."""
        return self._row(target.sandbox_id).public.get(str(target.port))

    async def publish(self, target: PreviewTarget, until: float | None) -> None:
        """Open the port to every client; durable when it returns."""

        def changed(row: _Row) -> _Row:
            public = {**row.public, str(target.port): until}
            if len(public) > MAX_PUBLIC:
                raise QuotaExceeded(
                    f"{MAX_PUBLIC} ports of this sandbox are public already",
                    hint="make one private: sandkasten url ID PORT --private",
                    quota="previews",
                )
            return replace(row, public=public)

        await self._change(target.sandbox_id, changed)

    async def withdraw(self, target: PreviewTarget) -> None:
        def changed(row: _Row) -> _Row:
            public = {port: end for port, end in row.public.items() if port != str(target.port)}
            return replace(row, public=public)

        await self._change(target.sandbox_id, changed)

    def rules_of(self, sandbox_id: str) -> SandboxPreviews:
        return self._row(sandbox_id).rules

    async def set_rules_of(self, sandbox_id: str, rules: SandboxPreviews) -> None:
        """Set the rules for all ports of a sandbox; durable when it returns."""
        await self._change(sandbox_id, lambda row: replace(row, rules=rules))

    def series(self, sandbox_id: str) -> int:
        """Return how often all links of a sandbox were revoked."""
        return self._row(sandbox_id).series

    def is_revoked(self, sandbox_id: str, link_id: str) -> bool:
        return link_id in self._row(sandbox_id).revoked

    async def revoke(self, sandbox_id: str, link_id: str, *, now: float, until: float) -> None:
        """Revoke one link, which expires by `until`; durable when it returns."""

        def changed(row: _Row) -> _Row:
            revoked = {link: end for link, end in row.revoked.items() if now < end}
            if len(revoked) >= MAX_REVOKED and link_id not in revoked:
                raise too_many_revoked()
            return replace(row, revoked={**revoked, link_id: until})

        await self._change(sandbox_id, changed)

    async def revoke_all(self, sandbox_id: str) -> None:
        """Revoke every link of a sandbox so far; durable when it returns."""
        await self._change(sandbox_id, lambda row: replace(row, revoked={}, series=row.series + 1))

    async def reload(self, sandbox_id: str) -> bool:
        """Read what other daemons have changed; return whether anything is different."""
        before = self._row(sandbox_id)
        shared = self._next_reload
        shared.sandbox_ids.add(sandbox_id)
        async with self._loading:
            if not shared.is_done:
                # The first that has its turn reads for all; who comes from now on waits for the
                # next statement, which sees later changes.
                self._next_reload = _Reload()
                await self._read_shared(shared)
        if shared.failure is not None:
            raise _copy(shared.failure)
        return self._row(sandbox_id) != before

    async def _read_shared(self, shared: _Reload) -> None:
        try:
            await self._read([*shared.sandbox_ids])
        except BackendUnavailable as exc:
            # Fail for all: one after the other would wait as long.
            shared.failure = exc
        shared.is_done = True

    def _row(self, sandbox_id: str) -> _Row:
        return self._rows.get(sandbox_id, _NOTHING)

    async def _change(self, sandbox_id: str, changed: Callable[[_Row], _Row]) -> None:
        async with self._database.transaction() as connection:
            # It also keeps the sandbox until the row is written.
            sql = "SELECT 1 FROM ledger WHERE id = $1 FOR KEY SHARE"
            if not await connection.fetchval(sql, sandbox_id):
                raise SessionNotFound(
                    f"there is no sandbox {sandbox_id}", hint="sandkasten ls lists them"
                )
            await connection.execute(
                "INSERT INTO previews VALUES ($1, $2) ON CONFLICT DO NOTHING", sandbox_id, _EMPTY
            )
            text = await connection.fetchval(
                "SELECT row FROM previews WHERE sandbox_id = $1 FOR UPDATE", sandbox_id
            )
            row = changed(_decoded(text))
            await connection.execute(
                "UPDATE previews SET row = $2 WHERE sandbox_id = $1",
                sandbox_id,
                json.dumps(asdict(row)),
            )
            notice = self._database.notice(_TOPIC, sandbox_id)
            await connection.execute("SELECT pg_notify($1, $2)", *notice)
        self._changes += 1
        self._rows[sandbox_id] = row

    def _note(self, sandbox_id: str) -> None:
        self._changed_elsewhere.add(sandbox_id)

    async def _refresh(self) -> None:
        """Read the rows that notices name; all of them at intervals, and if notices were missed."""
        named, self._changed_elsewhere = self._changed_elsewhere, set()
        if not named or "" in named:
            await self._load(None)
        else:
            await self._load([*named])

    async def _load(self, sandbox_ids: Sequence[str] | None) -> None:
        """Read the rows of these sandboxes; None: of all."""
        async with self._loading:
            await self._read(sandbox_ids)

    async def _read(self, sandbox_ids: Sequence[str] | None) -> None:
        """The caller holds `_loading`: an older answer that is late would open what was closed."""
        while True:
            changes = self._changes
            records = await self._database.fetch(_READ, sandbox_ids)
            if changes == self._changes:
                break
            # Otherwise a row was changed here meanwhile, and `records` may be older: read again.
        rows = {record["sandbox_id"]: _decoded(record["row"]) for record in records}
        if sandbox_ids is None:
            self._rows = rows
            return
        for sandbox_id in sandbox_ids:
            self._rows.pop(sandbox_id, None)
        self._rows.update(rows)


async def signing_key(database: PostgresDatabase, name: str) -> bytes:
    """Return the key of this name that all daemons have, made at first use."""
    await database.execute(
        "INSERT INTO signing_keys VALUES ($1, $2) ON CONFLICT DO NOTHING",
        name,
        secrets.token_bytes(32),
    )
    rows = await database.fetch("SELECT key FROM signing_keys WHERE name = $1", name)
    return bytes(rows[0]["key"])


def _copy(error: BackendUnavailable) -> BackendUnavailable:
    """Copy the error: one that is raised in several tasks would collect their tracebacks."""
    return BackendUnavailable(error.message, hint=error.hint, **error.details)


def _decoded(text: str) -> _Row:
    fields = json.loads(text)
    return _Row(**{**fields, "rules": SandboxPreviews(**fields["rules"])}) if fields else _NOTHING
