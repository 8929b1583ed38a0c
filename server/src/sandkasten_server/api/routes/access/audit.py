"""The audit log: what was done through the daemon and in its sandboxes. Read-only."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from sandkasten.errors import InvalidRequest, UnsupportedByBackend
from sandkasten.model.audit_records import AuditFilter, AuditHead
from sandkasten.model.json_codec import to_json
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.response.streamed_response import Streamed
from sandkasten_server.api.route import Answer, Query, Route

if TYPE_CHECKING:
    from starlette.responses import Response

    from sandkasten.ports import AuditLog
    from sandkasten_server.api.request.http_call import Call

_LINES: Final = "application/x-ndjson"
Kind = Literal["change", "exec", "file", "network", "policy", "key", "session", "audit"]


class AuditQuery(Query):
    tenant: str | None = Field(None, description="All tenants if omitted.")
    since_seq: Annotated[int, Field(ge=0, le=1 << 62)] | None = Field(
        None, description="The oldest records after this one; the newest records if omitted."
    )
    since_unix: Annotated[float, Field(ge=0, le=1e11)] | None = Field(
        None, description="Only records at or after this time, in Unix seconds."
    )
    kind: Kind | None = None
    action: str | None = None
    target: str | None = None
    session_id: str | None = None
    key_id: str | None = None
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
    kind: str
    session_id: str | None
    usage: dict[str, int] = Field(description="Resource use of a command that ended.")
    prev: str = Field(description="The hash of the record before.")
    hash: str


class EntryList(Answer):
    entries: list[AuditEntry]
    count: int
    next_seq: int = Field(description="Pass it as since_seq to go on from here.")


class AuditFlawInfo(Answer):
    seq: int
    flaw: Literal["changed", "missing", "reordered", "incomplete", "truncated"]
    message: str
    place: str


class AuditVerification(Answer):
    ok: bool
    records: int
    first_seq: int
    last_seq: int
    head: str = Field(description="The hash of the last record that is right.")
    flaw: AuditFlawInfo | None = Field(description="The first record that is not as it was.")


class VerifyQuery(Query):
    seq: Annotated[int, Field(ge=1, le=1 << 62)] | None = Field(
        None,
        description="Also check that this record has the hash `hash`; requires `hash`. A record "
        "before `first_seq` of the answer is not checked.",
    )
    hash: str | None = Field(None, pattern="^[0-9a-f]{64}$")


async def listed(call: Call) -> Response:
    query = call.query(AuditQuery)
    since = query.since_seq or 0
    rows = await _log(call).read(
        AuditFilter(
            tenant=query.tenant,
            kind=query.kind,
            action=query.action,
            target=query.target,
            session_id=query.session_id,
            key_id=query.key_id,
            since=query.since_unix,
            since_seq=since,
            limit=query.limit,
            newest=query.since_seq is None,
        )
    )
    return answer(
        {
            "entries": [to_json(row) for row in rows],
            "count": len(rows),
            "next_seq": rows[-1].seq if rows else since,
        }
    )


async def verified(call: Call) -> Response:
    query = call.query(VerifyQuery)
    if (query.seq is None) != (query.hash is None):
        raise InvalidRequest(
            "seq and hash are only checked together",
            hint="send both, as in the head that an earlier check returned",
            field="hash" if query.hash is None else "seq",
        )
    audit = _log(call)
    heads = []
    if query.seq is not None and query.hash is not None:
        heads.append(AuditHead(query.seq, query.hash))
    journal = call.server.stores.journal
    journal_head = None if journal is None else await journal.audit_head()
    if journal_head is not None:
        heads.append(journal_head)
    return answer(to_json(await audit.verify(heads)))


async def exported(call: Call) -> Response:
    return Streamed(AsyncExitStack(), _log(call).lines(), headers={"Content-Type": _LINES})


def _log(call: Call) -> AuditLog:
    if call.server.stores.audit is None:
        raise UnsupportedByBackend(
            "this daemon has no audit log", hint="set audit.enabled and restart it"
        )
    return call.server.stores.audit


ROUTES = (
    Route(
        "GET",
        "/v1/audit",
        listed,
        "Read the audit log",
        "audit",
        scope="admin",
        query=AuditQuery,
        answer=EntryList,
        errors=(UnsupportedByBackend,),
        description="Changes, commands, file writes, network verdicts, decisions of policy and "
        "uses of keys, oldest first within the answer.",
    ),
    Route(
        "GET",
        "/v1/audit/verify",
        verified,
        "Check the audit log",
        "audit",
        scope="admin",
        query=VerifyQuery,
        answer=AuditVerification,
        errors=(UnsupportedByBackend,),
        description="Checks the hash of every record, and that none is missing.",
    ),
    Route(
        "GET",
        "/v1/audit/export",
        exported,
        "Export the audit log",
        "audit",
        scope="admin",
        gives=(_LINES,),
        errors=(UnsupportedByBackend,),
        description="Every record as it is stored: one JSON object per line, oldest first.",
    ),
)
