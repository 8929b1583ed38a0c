"""List sessions page by page: living ones from the ledger, ended ones from the journal.

Living sessions come oldest first, ended ones newest first. A cursor names the last session of a
page; an invalid cursor raises InvalidRequest.
"""

from __future__ import annotations

import asyncio
import base64
from bisect import bisect_right
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, get_args

from sandkasten.errors import InvalidRequest, SessionNotFound
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.ids import sandbox_id
from sandkasten.model.journal_rows import SessionEnd
from sandkasten.model.sandbox.lifecycle import is_there
from sandkasten.model.sandbox.sandbox_values import SandboxStatus
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.model.journal_rows import SessionRow
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.model.sandbox.sandbox_values import Info
    from sandkasten.ports import Store
    from sandkasten_runtime.engine.handles import Handles
    from sandkasten_runtime.engine.lifecycle.sandboxes import Sandboxes
    from sandkasten_runtime.engine.session_journal import SessionJournal

ENDED: frozenset[str] = frozenset(get_args(SessionEnd))
STATUSES: tuple[str, ...] = tuple(dict.fromkeys((*get_args(SandboxStatus), *get_args(SessionEnd))))
MOST = 1000
_PAGE_ROWS = 500
_CHECKS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class SessionPage:
    living: tuple[Info, ...] = ()
    ended: tuple[SessionRow, ...] = ()
    next: str | None = None
    """Cursor of the next page; None on the last page."""


class SessionList:
    def __init__(
        self,
        sandboxes: Sandboxes,
        handles: Handles,
        store: Store,
        session_journal: SessionJournal,
    ) -> None:
        self._sandboxes = sandboxes
        self._handles = handles
        self._store = store
        self._session_journal = session_journal
        self._counted: Sequence[Record] | None = None
        self._counts: Counter[tuple[str, str]] = Counter()

    async def census(self) -> dict[tuple[str, str], int]:
        """Return the number of rows by state and backend, without checking the sandboxes."""
        rows = await self._store.list()
        if rows is not self._counted:
            self._counted = rows
            self._counts = Counter(
                ("spare" if row.acquired == "spare" else row.state.value, row.backend)
                for row in rows
            )
        return dict(self._counts)

    async def list(self, *, all: bool = False, tenant: str | None = None) -> Sequence[Info]:
        """Return the sandboxes of all tenants; with `all`, also unclaimed warm-pool sandboxes."""
        return await self.described(await self.records(all=all, tenant=tenant))

    async def records(self, *, all: bool = False, tenant: str | None = None) -> Sequence[Record]:
        """Return the rows of `list`, oldest first, without checking the sandboxes."""
        records = await self._store.list()
        return [
            record
            for record in records
            if (all or not record.hidden) and tenant in (None, record.tenant)
        ]

    async def described(self, records: Sequence[Record]) -> Sequence[Info]:
        """Describe sandboxes in their current state. Those with an open connection are alive, and
        only the others are checked.
        """
        gate = asyncio.Semaphore(_CHECKS_AT_ONCE)
        current = [*records]

        async def check(number: int) -> None:
            async with gate:
                current[number] = await self._sandboxes.looked_at(current[number])

        unsure = [
            number
            for number, record in enumerate(records)
            if is_there(record.state) and not self._handles.connected(record.id)
        ]
        if unsure:
            await asyncio.gather(*map(check, unsure))
        return [self._sandboxes.describe(record, created=False) for record in current]

    async def page(
        self,
        tenant: str | None,
        *,
        status: str | None = None,
        labels: Mapping[str, str | None] | None = None,
        limit: int = MOST,
        cursor: str | None = None,
    ) -> SessionPage:
        """Return one page; without a tenant, of all tenants.

        `labels` are required labels, each with or without a value.
        """
        if status is not None and status not in STATUSES:
            raise InvalidRequest(
                f"there is no status {shown(status)}",
                hint=did_you_mean(status, STATUSES),
                field="status",
            )
        wanted = labels or {}
        if status in ENDED:
            if tenant is None:
                raise InvalidRequest(
                    "ended sessions are listed for one tenant at a time",
                    hint="name the tenant in X-Sandkasten-Tenant (SANDKASTEN_TENANT)",
                    field="status",
                )
            return await self._ended(tenant, status or "", wanted, limit, cursor)
        return await self._living(tenant, status, wanted, limit, cursor)

    async def _living(
        self,
        tenant: str | None,
        status: str | None,
        labels: Mapping[str, str | None],
        limit: int,
        cursor: str | None,
    ) -> SessionPage:
        records = await self.records(tenant=tenant)
        first = 0 if cursor is None else bisect_right(records, _read(cursor), key=_age)
        candidates = (
            record for record in islice(records, first, None) if _has(record.labels, labels)
        )
        matching: list[Info] = []
        # Sandboxes behind the page are not checked.
        while some := tuple(islice(candidates, limit + 1 - len(matching))):
            infos = await self.described(some)
            matching += [info for info in infos if status in (None, info.status)]
        page = tuple(matching[:limit])
        more = len(matching) > limit
        return SessionPage(
            living=page, next=_write(page[-1].created_at, page[-1].id) if more else None
        )

    async def _ended(
        self,
        tenant: str,
        status: str,
        labels: Mapping[str, str | None],
        limit: int,
        cursor: str | None,
    ) -> SessionPage:
        journal = self._session_journal.journal
        if journal is None:
            return SessionPage()
        before = None if cursor is None else _read(cursor)[1]
        page: list[SessionRow] = []
        while rows := await journal.sessions(
            tenant, status=status, limit=_PAGE_ROWS, before=before
        ):
            for row in rows:
                if not _has(row.labels, labels):
                    continue
                if len(page) == limit:
                    last = page[-1]
                    return SessionPage(ended=tuple(page), next=_write(last.created_at, last.id))
                page.append(row)
            before = rows[-1].id
        return SessionPage(ended=tuple(page))


def _age(record: Record) -> tuple[float, str]:
    return record.created_at, record.id


def _has(labels: Mapping[str, str], wanted: Mapping[str, str | None]) -> bool:
    return all(name in labels and value in (None, labels[name]) for name, value in wanted.items())


def _write(created_at: float, the_id: str) -> str:
    return base64.urlsafe_b64encode(f"{created_at!r} {the_id}".encode()).decode()


def _read(cursor: str) -> tuple[float, str]:
    try:
        text = base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True).decode()
        moment, _, the_id = text.partition(" ")
        return float(moment), sandbox_id(the_id)
    except (ValueError, SessionNotFound) as exc:
        raise InvalidRequest(
            "the cursor is not valid",
            hint="pass the X-Next-Cursor header of the previous page unchanged, or omit cursor",
            field="cursor",
        ) from exc
