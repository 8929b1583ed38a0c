"""The commands and code of a session, from its sandbox and from the journal, also of an ended one.

Only for the tenant that owned the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandkasten.errors import SandboxLost, SessionExpired, SessionNotFound
from sandkasten.model.ids import sandbox_id
from sandkasten.model.json_codec import to_json
from sandkasten_runtime.engine.commands.exec_past import past_of

if TYPE_CHECKING:
    from sandkasten.model.ids import SandboxId
    from sandkasten_server.api.request.http_call import Call


async def history(call: Call, limit: int) -> list[dict[str, Any]]:
    """Return entries, newest first; raises the session's own error if the journal has none."""
    whose: Any = {"limit": limit, "tenant": call.principal.tenant}
    try:
        entries = await call.engine.execs(await call.session(), **whose)
    except (SessionNotFound, SessionExpired, SandboxLost):
        if not await _remembered(call):
            raise
        entries = await call.engine.past_execs(call.path("id"), **whose)
    return [to_json(entry) for entry in reversed(entries)]


async def exec_row(call: Call, exec_id: str) -> dict[str, Any] | None:
    """Return one entry that only the journal remembers."""
    if call.server.stores.journal is None or not await _remembered(call):
        return None
    row = await call.server.stores.journal.exec(call.path("id"), exec_id)
    if row is None or row.tenant != call.principal.tenant:
        return None
    return to_json(past_of(row))


async def owned_session(call: Call) -> SandboxId:
    """Return the id of a session of this tenant, also of an ended one that is remembered."""
    try:
        return await call.session()
    except (SessionNotFound, SessionExpired):
        if not await _remembered(call):
            raise
        return sandbox_id(call.path("id"))


async def _remembered(call: Call) -> bool:
    if call.server.stores.journal is None:
        return False
    row = await call.server.stores.journal.session(sandbox_id(call.path("id")))
    return row is not None and row.tenant == call.principal.tenant
