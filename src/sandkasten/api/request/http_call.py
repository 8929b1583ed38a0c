"""One request: its principal, and its body and query once they are read.

A malformed body is InvalidRequest (400 if it is not JSON, 422 if it does not match the route), a
large one is PayloadTooLarge before it is in memory.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from sandkasten.errors import InvalidRequest, PayloadTooLarge
from sandkasten.model.ids import SandboxId, sandbox_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from starlette.requests import HTTPConnection, Request

    from sandkasten.api.server_context import Server
    from sandkasten.engine.engine import Engine
    from sandkasten.model.access.tenancy import Principal

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
# Bytes a second that the slowest client still manages.
_SLOWEST = 4096
# How many whole pauses a streamed body may take in all, beyond what its size allows.
_PAUSES = 10


class ClientLeft(Exception):
    """The client disconnected during its request: no response can be sent."""


@dataclass(slots=True)
class Call:
    server: Server
    connection: HTTPConnection
    """A Request, or the WebSocket of a route of that kind."""
    principal: Principal
    request_id: str

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
        raw = await self.raw(self.server.rules.max_json_bytes)
        if not raw:
            return checked(model, {})
        try:
            value = from_json(raw, allow_inf_nan=False)
        except ValueError as exc:
            raise InvalidRequest(
                f"the body is not valid JSON: {str(exc)[:200]}",
                hint="send one JSON object in UTF-8",
            ) from exc
        if not isinstance(value, dict):
            raise InvalidRequest("the body is not a JSON object", hint="send one JSON object")
        return checked(model, value)

    def query(self, model: type[M]) -> M:
        try:
            pairs = parse_qsl(
                self.connection.scope["query_string"].decode("ascii"),
                keep_blank_values=True,
                errors="strict",
            )
        except ValueError as exc:
            # Invalid UTF-8 would become another string, and name another file.
            raise InvalidRequest(
                "the query is not valid UTF-8",
                hint="send bytes as base64 where the route accepts it",
            ) from exc
        given = dict(pairs)
        if len(given) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)[:100]
            raise InvalidRequest(f"{twice} is given twice", hint="give it once", http_status=422)
        return checked(model, given)

    async def while_there(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; a client that disconnects cancels it (ClientLeft)."""
        task, leaving = asyncio.create_task(work), asyncio.create_task(self._left())
        try:
            await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientLeft
            return task.result()
        finally:
            for one in (task, leaving):
                one.cancel()
            await asyncio.gather(task, leaving, return_exceptions=True)

    async def _left(self) -> None:
        while (await self.request.receive())["type"] != "http.disconnect":
            pass

    async def raw(self, most: int) -> bytes:
        patience_s = self.server.rules.body_timeout_s
        pieces = [piece async for piece in self._pieces(most, patience_s, patience_s)]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def pieces(self, most: int) -> AsyncIterator[bytes]:
        """Iterate over a streamed body, with a limit on pauses and on the total time."""
        patience_s = self.server.rules.upload_timeout_s
        return self._pieces(most, patience_s, _PAUSES * patience_s)

    async def _pieces(self, most: int, pause_s: float, in_all_s: float) -> AsyncIterator[bytes]:
        """Iterate: each piece within `pause_s`, all within `in_all_s` plus time for their size."""
        told = self.connection.headers.get("content-length", "")
        if told.isascii() and told.isdigit() and (len(told) > 18 or int(told) > most):
            raise _too_large(most)
        receive = self.request.receive
        count, waited_s, more = 0, 0.0, True
        while more:
            left_s = min(pause_s, in_all_s + count / _SLOWEST - waited_s)
            began = monotonic()
            try:
                async with asyncio.timeout(left_s):
                    message = await receive()
            except TimeoutError as exc:
                raise InvalidRequest(
                    "the body did not arrive in time",
                    hint="send it without pauses",
                    http_status=408,
                ) from exc
            # Only the client's time: what the reader of the pieces takes is ours.
            waited_s += monotonic() - began
            if message["type"] == "http.disconnect":
                raise ClientLeft
            piece, more = message.get("body", b""), message.get("more_body", False)
            count += len(piece)
            if count > most:
                raise _too_large(most)
            if piece:
                yield piece


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


def _too_large(most: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the body is larger than {most} bytes", hint="stream it to fs/upload", limit=most
    )
