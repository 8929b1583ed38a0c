"""Requests to one sandbox: which one it is, whether its token admits them, and their streams.

The id is in `E2b-Sandbox-Id` and the token in `X-Access-Token`. The code interpreter's client sends
another token for some of its requests, in `E2B-Traffic-Access-Token`. A wrong token is Unauthorized
before the sandbox is looked up, so it does not reveal which ids exist.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing, suppress
from typing import TYPE_CHECKING, Final, TypeVar

from sandkasten.errors import InvalidRequest, SandkastenError, SessionNotFound, Unauthorized
from sandkasten.model.access.tenancy import Principal
from sandkasten.model.ids import SandboxId, sandbox_id
from sandkasten_e2b.connect_codec import (
    STREAM,
    end_of_stream,
    envelope,
    error_fields,
    only_message,
)
from sandkasten_e2b.e2b_dialect import is_gone
from sandkasten_e2b.sandbox_accounts import SandboxAccounts
from sandkasten_e2b.sandbox_places import check_user, user_in
from sandkasten_server.api.response.streamed_response import Followed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sandkasten_e2b.e2b_messages import Message
    from sandkasten_e2b.envd_tokens import EnvdTokens
    from sandkasten_e2b.pause_schedule import PauseSchedule
    from sandkasten_runtime.engine.storage.sandbox_files import FileOperations
    from sandkasten_server.api.request.http_call import Call

M = TypeVar("M", bound="Message")
Event = TypeVar("Event")
# What envd does for a client that names no interval.
_KEEP_ALIVE_S: Final = 90.0
_MAX_NUMBER: Final = 10


class EnvdAccess:
    def __init__(self, tokens: EnvdTokens, pauses: PauseSchedule) -> None:
        self.tokens = tokens
        self.accounts = SandboxAccounts()
        self._pauses = pauses

    def boot_id(self, the_id: SandboxId) -> str:
        """Return what Linux calls the boot id: another one after a pause that drops memory."""
        return self.tokens.boot_id(the_id, self._pauses.boots(the_id))

    async def files(self, call: Call, the_id: SandboxId, user: str | None = None) -> FileOperations:
        """Return the files of a sandbox for the user that a request names."""
        name = user_in(call.connection.headers.get("authorization")) if user is None else user
        return call.engine.files.by(await self.accounts.user(call.engine, the_id, name))

    async def sandbox(
        self, call: Call, *, by_traffic_token: bool = False, wakes: bool = True
    ) -> SandboxId:
        """Return the sandbox of a request and make its tenant the principal.

        With `wakes`, a paused sandbox that requests resume is resumed.
        """
        headers = call.connection.headers
        named, token = headers.get("e2b-sandbox-id", ""), headers.get("x-access-token", "")
        try:
            the_id = sandbox_id(named)
        except SessionNotFound as exc:
            raise _refused() from exc
        traffic = headers.get("e2b-traffic-access-token", "") if by_traffic_token else ""
        if not self.tokens.is_valid(the_id, token) and not (
            traffic and self.tokens.is_valid_for_traffic(the_id, traffic)
        ):
            raise _refused()
        check_user(user_in(headers.get("authorization")))
        await self.enter(call, the_id, wakes=wakes)
        return the_id

    async def enter(self, call: Call, the_id: SandboxId, *, wakes: bool = True) -> None:
        """Act as the tenant of a sandbox. Raise SessionNotFound or SessionExpired."""
        tenant = await call.engine.owner(the_id)
        await call.engine.check_owner(the_id, tenant)
        call.principal = Principal(tenant=tenant, scopes=frozenset({"sessions"}))
        if wakes:
            await self._pauses.admit(call.engine, call.server.clock, the_id)
        elif self._pauses.get(the_id) is not None:
            info = await call.engine.get(the_id)
            await self._pauses.settle(call.engine, info, call.server.clock.now())


def _refused() -> Unauthorized:
    return Unauthorized(
        "the request has no valid access token for this sandbox",
        hint="connect to the sandbox with the SDK, which sends E2b-Sandbox-Id and X-Access-Token",
    )


async def streamed_request(call: Call, model: type[M]) -> M:
    """Return the one message that starts a stream."""
    # Before a process is started whose stream the client would then not get.
    _keep_alive_s(call)
    most = call.server.rules.max_json_bytes
    return await call.parsed(model, only_message(await call.raw(most), most))


def timeout_s(call: Call) -> float | None:
    """Return how long the client lets a call take; None: no limit."""
    milliseconds = _number(call, "connect-timeout-ms")
    return None if milliseconds is None else max(1, milliseconds) / 1000


def follow(
    call: Call, events: AsyncIterator[Mapping[str, object]], alive: Mapping[str, object]
) -> Followed:
    """Return a stream of messages. `alive` is sent when there was none for a while."""
    pieces = _pieces(events, alive, _keep_alive_s(call))
    return Followed(AsyncExitStack(), pieces, headers={"content-type": STREAM})


async def _pieces(
    events: AsyncIterator[Mapping[str, object]], alive: Mapping[str, object], every_s: float
) -> AsyncIterator[bytes]:
    try:
        async with aclosing(kept_alive(events, alive, every_s)) as source:  # type: ignore[type-var]
            async for message in source:
                yield envelope(message)
    except SandkastenError as exc:
        if is_gone(exc):
            # The connection breaks: the SDKs then ask whether the sandbox still runs. After an
            # error in the stream, the one for JavaScript would not.
            raise
        yield end_of_stream(error_fields(exc))
        return
    yield end_of_stream()


async def kept_alive(
    events: AsyncIterator[Event],
    alive: Event,
    every_s: float,
    coming: asyncio.Future[Event | None] | None = None,
) -> AsyncIterator[Event]:
    """Yield the events, and `alive` when there was none for a while.

    `coming` is the read of the first event, where it has begun already.
    """
    async with aclosing(events) as source:  # type: ignore[type-var]
        try:
            while True:
                if coming is None:
                    coming = asyncio.ensure_future(_next(source))
                done, _ = await asyncio.wait((coming,), timeout=every_s)
                if not done:
                    yield alive
                    continue
                message, coming = coming.result(), None
                if message is None:
                    break
                yield message
        finally:
            if coming is not None:
                coming.cancel()
                with suppress(asyncio.CancelledError, SandkastenError):
                    await coming


async def _next(source: AsyncIterator[Event]) -> Event | None:
    return await anext(source, None)


def _keep_alive_s(call: Call) -> float:
    return max(1.0, float(_number(call, "keepalive-ping-interval") or _KEEP_ALIVE_S))


def _number(call: Call, header: str) -> int | None:
    text = call.connection.headers.get(header)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_NUMBER):
        raise InvalidRequest(f"{header} must be a whole number", hint="leave it out", field=header)
    return int(text)
