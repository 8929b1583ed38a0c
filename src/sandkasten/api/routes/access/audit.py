"""The audit: changes that were made through the daemon. Read-only, for the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from sandkasten.api.response.json_response import answer
from sandkasten.api.route import Answer, Query, Route
from sandkasten.errors import UnsupportedByBackend
from sandkasten.model.json_codec import to_json

if TYPE_CHECKING:
    from starlette.responses import Response

    from sandkasten.api.request.http_call import Call


class AuditQuery(Query):
    tenant: str | None = Field(None, description="All tenants if omitted.")
    since_seq: Annotated[int, Field(ge=0, le=1 << 62)] | None = Field(
        None, description="The oldest rows after this one; the newest rows if omitted."
    )
    action: str | None = None
    target: str | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class AuditEntry(Answer):
    seq: int
    at: str
    at_unix: float
    tenant: str
    key_id: str | None
    action: str
    target: str
    outcome: str
    request_id: str
    detail: dict[str, str]


class EntryList(Answer):
    entries: list[AuditEntry]
    count: int
    next_seq: int = Field(description="Pass it as since_seq to go on from here.")


async def listed(call: Call) -> Response:
    query = call.query(AuditQuery)
    if call.server.journal is None:
        raise UnsupportedByBackend("this daemon has no audit", hint="use a daemon with a database")
    since = query.since_seq or 0
    found = await call.server.journal.audited(
        query.tenant,
        since_seq=since,
        action=query.action,
        target=query.target,
        limit=query.limit,
        newest=query.since_seq is None,
    )
    return answer(
        {
            "entries": [to_json(row) for row in found],
            "count": len(found),
            "next_seq": found[-1].seq if found else since,
        }
    )


ROUTES = (
    Route(
        "GET",
        "/v1/audit",
        listed,
        "Read the audit",
        "audit",
        scope="admin",
        query=AuditQuery,
        answer=EntryList,
        errors=(UnsupportedByBackend,),
        description="Every change through the daemon, oldest first within the answer.",
    ),
)
