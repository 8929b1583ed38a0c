"""The commands of a session, from its sandbox and from the journal.

While the sandbox lives, its answer wins; the journal has what it no longer remembers, for the
tenant that owned the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandkasten.api.response.exec_json import row_fields
from sandkasten.errors import Conflict, SandboxLost, SessionExpired, SessionNotFound
from sandkasten.model.ids import sandbox_id
from sandkasten.model.json_codec import to_json

if TYPE_CHECKING:
    from sandkasten.api.request.http_call import Call
    from sandkasten.model.commands.exec_values import ExecResult
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.journal_rows import ExecRow


async def history(call: Call, limit: int) -> list[dict[str, Any]]:
    """Return commands, newest first; raises the session's own error if the journal has none."""
    known: dict[str, dict[str, Any]] = {}
    try:
        for result in await _told(call):
            known[result.exec_id] = {
                **to_json(result),
                "command": None,
                "output_kept": True,
            }
    except (SessionNotFound, SessionExpired, SandboxLost):
        if not await _remembered(call):
            raise
    if call.server.journal is not None:
        for row in await call.server.journal.execs(call.path("id"), limit=limit):
            if row.tenant != call.principal.tenant:
                continue
            if row.id in known:
                known[row.id].update(_only_in_journal(row, known[row.id]))
            else:
                known[row.id] = row_fields(row)
    newest = sorted(known.values(), key=lambda one: one["started_at"], reverse=True)
    return newest[:limit]


def _only_in_journal(row: ExecRow, told: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that a sandbox does not know: the command, and why the engine ended it."""
    fields = row_fields(row)
    names = ("command", *(("why", "oom_killed") if told["why"] is None else ()))
    return {name: fields[name] for name in names}


async def exec_row(call: Call, exec_id: str) -> dict[str, Any] | None:
    """Return one command that only the journal remembers."""
    if call.server.journal is None or not await _remembered(call):
        return None
    row = await call.server.journal.exec(call.path("id"), exec_id)
    return None if row is None or row.tenant != call.principal.tenant else row_fields(row)


async def owned_session(call: Call) -> SandboxId:
    """Return the id of a session of this tenant, also of an ended one that is remembered."""
    try:
        return await call.session()
    except (SessionNotFound, SessionExpired):
        if not await _remembered(call):
            raise
        return sandbox_id(call.path("id"))


async def _told(call: Call) -> list[ExecResult]:
    the_id = await call.session()
    try:
        return await call.engine.execs(the_id)
    except Conflict:
        # Paused: it cannot be asked, and what it would say is in the journal.
        if call.server.journal is None:
            raise
        return []


async def _remembered(call: Call) -> bool:
    if call.server.journal is None:
        return False
    row = await call.server.journal.session(sandbox_id(call.path("id")))
    return row is not None and row.tenant == call.principal.tenant
