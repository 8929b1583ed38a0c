"""Snapshots and forks of E2B. Both copy the files of a running sandbox, and nothing else of it.

A snapshot is a stored file, so its routes need the scope of stored files too.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from sandkasten.errors import NotFound, SandkastenError
from sandkasten.model.ids import sandbox_id
from sandkasten_e2b import snapshot_store
from sandkasten_e2b.e2b_dialect import control_error
from sandkasten_e2b.e2b_messages import Fork, NewSnapshot, SnapshotQuery
from sandkasten_e2b.sandbox_page import page_of
from sandkasten_e2b.sandbox_routes import NEXT_TOKEN
from sandkasten_server.api.request.authentication import require
from sandkasten_server.api.response.json_response import answer

if TYPE_CHECKING:
    from sandkasten.model.sandbox.sandbox_values import Info
    from sandkasten_e2b.sandbox_routes import SandboxRoutes
    from sandkasten_e2b.snapshot_store import Snapshot
    from sandkasten_server.api.request.http_call import Call

# Each creates a sandbox and unpacks files; more at once would only wait for the same disk.
_AT_ONCE: Final = 4


class SnapshotRoutes:
    def __init__(self, sandboxes: SandboxRoutes) -> None:
        self._sandboxes = sandboxes

    async def create(self, call: Call) -> Response:
        require(call.principal, "files")
        the_id = await call.session()
        body = await call.body(NewSnapshot)
        info = await self._sandboxes.living(call, the_id)
        snapshot = await call.while_there(snapshot_store.capture(call, info, body.name))
        return answer(snapshot.public, 201)

    async def listed(self, call: Call) -> Response:
        require(call.principal, "files")
        query = call.query(SnapshotQuery)
        sandbox = None if query.sandboxID is None else sandbox_id(query.sandboxID)
        snapshots = await snapshot_store.listed(call, sandbox=sandbox, name=query.name)
        page, following = page_of(snapshots, query.limit, query.nextToken, newest_first=True)
        headers = None if following is None else {NEXT_TOKEN: following}
        return answer([snapshot.public for snapshot in page], headers=headers)

    async def remove(self, call: Call) -> Response:
        """Remove a snapshot. Images are not removed by clients of E2B."""
        require(call.principal, "files")
        snapshot = await snapshot_store.find(call, call.path("template"))
        if snapshot is None:
            raise NotFound("no snapshot has that id", hint="list_snapshots shows them")
        await snapshot_store.remove(call, snapshot)
        return Response(status_code=204)

    async def fork(self, call: Call) -> Response:
        the_id = await call.session()
        body = await call.body(Fork)
        info = await self._sandboxes.living(call, the_id)
        return answer(await call.while_there(self._forked(call, info, body)), 201)

    async def _forked(self, call: Call, info: Info, body: Fork) -> list[dict[str, object]]:
        snapshot = await snapshot_store.capture_for_fork(call, info)
        gate = asyncio.Semaphore(_AT_ONCE)

        async def fork_once() -> dict[str, object]:
            async with gate:
                return await self._fork(call, info, snapshot, float(max(1, body.timeout)))

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(fork_once()) for _ in range(body.count)]
        finally:
            await snapshot_store.remove(call, snapshot)
        return [task.result() for task in tasks]

    async def _fork(
        self, call: Call, info: Info, snapshot: Snapshot, timeout_s: float
    ) -> dict[str, object]:
        try:
            created = await self._sandboxes.fill_new(call, snapshot, info, timeout_s)
        except SandkastenError as exc:
            return {"error": control_error(exc)}
        return {"sandbox": self._sandboxes.created(call, created, info.image)}
