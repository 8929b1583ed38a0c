"""One request: its principal, and its body and query once they are checked.

A malformed body is InvalidRequest: 400 if it is not JSON, 422 if it does not match the route.
`request_body` reads and parses it, with limits.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError

from sandkasten.errors import InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.ids import SandboxId, sandbox_id
from sandkasten_server.api.request.large_bodies import LARGE_BYTES
from sandkasten_server.api.request.request_body import (
    LEFT,
    ClientLeft,
    parse_object,
    read_body,
    stream_body,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from starlette.requests import HTTPConnection, Request

    from sandkasten.model.access.tenancy import Principal
    from sandkasten_runtime.engine.engine import Engine
    from sandkasten_server.api.server_context import Server

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
# A larger body is parsed in a thread, so that other requests do not wait for it.
_PARSED_AT_ONCE: Final = 32 * 1024
# More than any route has; names and values are compared with each other.
_MAX_PARAMETERS: Final = 64


@dataclass(slots=True)
class Call:
    server: Server
    connection: HTTPConnection
    """A Request, or the WebSocket of a route of that kind."""
    principal: Principal
    request_id: str
    recorded: dict[str, str] = field(default_factory=dict)
    """What the audit record of a change contains about it; the handler adds to it."""

    @property
    def engine(self) -> Engine:
        return self.server.engine

    @property
    def request(self) -> Request:
        from starlette.requests import Request

        assert isinstance(self.connection, Request)
        return self.connection

    def path(self, name: str) -> str:
        return str(self.connection.path_params[name])

    async def session(self) -> SandboxId:
        """Return the id in the path if it belongs to this tenant; otherwise as for an unknown id.

        SessionExpired with the reason if this tenant's session has ended.
        """
        the_id = sandbox_id(self.path("id"))
        await self.engine.check_owner(the_id, self.principal.tenant)
        return the_id

    async def body(self, model: type[M]) -> M:
        async with AsyncExitStack() as stack:
            raw = await self._received(self.server.rules.max_json_bytes, stack)
            return await self.parsed(model, raw or b"{}")

    async def parsed(self, model: type[M], raw: bytes) -> M:
        """Return a JSON object as a model; a large one is parsed in a thread.

        A client that leaves while its body waits for others gives up its turn (ClientLeft).
        """

        def parse() -> M:
            return checked(model, parse_object(raw))

        if len(raw) <= _PARSED_AT_ONCE:
            return parse()
        if len(raw) <= LARGE_BYTES:
            return await asyncio.to_thread(parse)
        turns = self.server.large_bodies
        return await self.while_there(turns.parse(self.principal.tenant, parse))

    def query(self, model: type[M]) -> M:
        raw = self.connection.scope["query_string"]
        if raw.count(b"&") >= _MAX_PARAMETERS:
            raise InvalidRequest(
                f"the query has more than {_MAX_PARAMETERS} parameters",
                hint="see /docs for the parameters of this route",
                http_status=422,
            )
        try:
            pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict")
        except ValueError as exc:
            # Invalid UTF-8 would become another string, and name another file.
            raise InvalidRequest(
                "the query is not valid UTF-8",
                hint="send bytes as base64 where the route accepts it",
            ) from exc
        parameters = dict(pairs)
        if len(parameters) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)[:100]
            raise InvalidRequest(f"{twice} is given twice", hint="give it once", http_status=422)
        return checked(model, parameters)

    async def while_there(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; a client that disconnects cancels it (ClientLeft)."""
        task, leaving = asyncio.create_task(work), asyncio.create_task(self._left())
        try:
            await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientLeft
            return task.result()
        finally:
            for pending in (task, leaving):
                pending.cancel()
            await asyncio.gather(task, leaving, return_exceptions=True)

    async def _left(self) -> None:
        event: asyncio.Event | None = self.connection.scope.get(LEFT)
        if event is not None:
            # The body stays unread: the caller may be in the middle of it.
            await event.wait()
            return
        while (await self.request.receive())["type"] != "http.disconnect":
            pass

    async def raw(self, most: int) -> bytes:
        async with AsyncExitStack() as stack:
            return await self._received(most, stack)

    async def _received(self, most: int, stack: AsyncExitStack) -> bytes:
        """Return the body; a large one has a place of its tenant until `stack` is closed."""

        async def large() -> None:
            place = self.server.large_bodies.receiving(self.principal.tenant)
            await stack.enter_async_context(place)

        return await read_body(self.request, most, self.server.rules.body_timeout_s, large)

    def pieces(self, most: int) -> AsyncIterator[bytes]:
        return stream_body(self.request, most, self.server.rules.upload_timeout_s)


def checked(model: type[M], value: dict[str, object]) -> M:
    try:
        return model.model_validate(value)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:100]
        raise InvalidRequest(
            f"{where or 'the request'}: {first['msg']}"[:300],
            hint="see /docs for the fields of this route",
            field=where,
            http_status=422,
        ) from exc
