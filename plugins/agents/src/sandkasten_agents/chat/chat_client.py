"""Client for any endpoint with OpenAI-compatible chat completions.

It uses aiohttp, which the package requires anyway; a call took 0.5 ms with it and 1.2 ms with
httpx. The answer is read as a stream and returned as a whole. Transient failures (429, 5xx, a
broken connection, a timeout) are retried until the first token of the answer arrives. Redirects are
not followed, TLS is verified, and the key is sent to the endpoint only.

Raises ModelUnavailable if a later retry may help, InvalidConfiguration if the key, the URL or the
model name is wrong, and RunFailed if this request can never succeed.
"""

from __future__ import annotations

import asyncio
import io
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.request import getproxies

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from sandkasten.errors import ModelUnavailable, SandkastenError
from sandkasten.model.proxies import proxy_arguments
from sandkasten.model.retries import Backoff, retry_after_s
from sandkasten.outgoing_http import new_http_session, read_start
from sandkasten_agents.chat.chat_errors import (
    error_of,
    refusal_of,
    shown,
    without_key,
    without_rejected_field,
)
from sandkasten_agents.chat.chat_wire import (
    MOST_BYTES,
    ChatRequest,
    EndpointError,
    EventParser,
    Reply,
    ReplyAssembly,
    ToolCall,
    Unreadable,
    encoded,
)
from sandkasten_agents.chat.model_settings import Models, ModelSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

__all__ = [
    "ChatModel",
    "ChatRequest",
    "ModelSettings",
    "Models",
    "OnRetry",
    "Reply",
    "ToolCall",
]

CONNECT_S: Final = 10.0
# Longest Retry-After that is honoured; a longer wait is for the caller to decide.
MOST_PAUSE_S: Final = 60.0
_MOST_REFUSAL_BYTES: Final = 1 << 16
# They arrive with the last token or never; a new connection costs little more than this.
_LAST_BYTES_S: Final = 0.05
# Larger bodies are sent in chunks, so that the event loop can run other tasks in between.
_AT_ONCE: Final = 1 << 18
_BROKEN: Final = (aiohttp.ClientError, HttpProcessingError, OSError)


class OnRetry(Protocol):
    async def __call__(self, reason: str, pause_s: float) -> None:
        """Called before each wait."""
        ...


class _Transient(Exception):
    """A transient failure; `error` is raised after the last attempt."""

    def __init__(self, error: SandkastenError, wanted_s: float = 0.0) -> None:
        super().__init__(error.message)
        self.error = error
        self.wanted_s = wanted_s


class _RetryWithout(Exception):
    """Retry without a field that the endpoint does not know."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__("the endpoint does not know a field")
        self.body = body


class ChatModel:
    """Client of one event loop. Keeps sockets open until `aclose`."""

    def __init__(self) -> None:
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ChatModel:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def ask(
        self,
        settings: ModelSettings,
        request: ChatRequest,
        retried: OnRetry | None = None,
        traceparent: str | None = None,
    ) -> Reply:
        """Return the complete answer. Cancelling closes the connection, which the endpoint
        notices. `traceparent`: the W3C header of the caller's span.
        """
        body = request.body(settings.model, stream=settings.stream)
        turn = 0
        while True:
            try:
                return await self._once(settings, body, traceparent)
            except _RetryWithout as exc:
                # Each retry removes a field, so this loop ends.
                body = exc.body
            except _Transient as exc:
                turn += 1
                if turn > settings.max_retries or exc.wanted_s > MOST_PAUSE_S:
                    raise exc.error from exc.__cause__
                backoff = Backoff(settings.first_pause_s, MOST_PAUSE_S)
                wait_s = max(exc.wanted_s, backoff.pause_s(turn))
                if retried is not None:
                    await retried(exc.error.message, wait_s)
                await asyncio.sleep(wait_s)

    # ---- one attempt

    async def _once(
        self, settings: ModelSettings, body: dict[str, Any], traceparent: str | None
    ) -> Reply:
        assembly = ReplyAssembly()
        posting = self._post(settings, body, traceparent)
        try:
            async with asyncio.timeout(settings.timeout_s), posting as answer:
                if answer.status != 200:
                    raise await _refused(settings, body, answer)
                await _read(settings, answer, assembly)
        except aiohttp.ServerTimeoutError as exc:
            reason = f"it could not be reached within {CONNECT_S:g} s"
            raise _broken_error(settings, assembly, reason, exc) from exc
        except TimeoutError as exc:
            raise _broken_error(
                settings,
                assembly,
                f"nothing came for {settings.idle_s:g} s, or it was not "
                f"done within {settings.timeout_s:g} s",
                exc,
            ) from exc
        except _BROKEN as exc:
            raise _broken_error(settings, assembly, _reason(exc, settings), exc) from exc
        except Unreadable as exc:
            raise ModelUnavailable(
                f"the model endpoint {settings.shown} sent an invalid answer: {exc}",
                hint=f"check that {settings.url_name} is a chat completions endpoint",
            ) from None
        except EndpointError as exc:
            refusal = refusal_of(0, exc.error, settings)
            error = error_of(refusal, settings)
            if assembly.begun or not refusal.is_transient:
                raise error from None
            raise _Transient(error) from None
        return _without_key_in(assembly.reply(), settings)

    def _post(
        self, settings: ModelSettings, body: dict[str, Any], traceparent: str | None
    ) -> aiohttp.client._RequestContextManager:
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
        }
        if settings.api_key:
            headers["Authorization"] = f"Bearer {settings.api_key}"
        if traceparent is not None:
            headers["traceparent"] = traceparent
        raw = encoded(body)
        return self._session().post(
            settings.url,
            data=io.BytesIO(raw) if len(raw) > _AT_ONCE else raw,
            headers=headers,
            # The key is for this endpoint only, so a redirect must not choose another.
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            **proxy_arguments(settings.url, getproxies()),
        )

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = new_http_session(
                aiohttp.TCPConnector(limit=0), headers={"User-Agent": "sandkasten"}
            )
        return self._http


async def _refused(
    settings: ModelSettings, body: Mapping[str, Any], answer: aiohttp.ClientResponse
) -> Exception:
    async with asyncio.timeout(settings.idle_s):
        raw = await read_start(answer, _MOST_REFUSAL_BYTES)
    refusal = refusal_of(answer.status, raw, settings)
    if (changed := without_rejected_field(body, refusal)) is not None:
        return _RetryWithout(changed)
    error = error_of(refusal, settings)
    return (
        _Transient(error, retry_after_s(answer.headers, time.time()))
        if refusal.is_transient
        else error
    )


async def _read(
    settings: ModelSettings, answer: aiohttp.ClientResponse, assembly: ReplyAssembly
) -> None:
    """Read the body into `assembly`, as a stream or as a whole, whichever the endpoint sent."""
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise Unreadable("it is compressed, which was not requested")
    events = EventParser() if answer.content_type == "text/event-stream" else None
    whole = bytearray()
    length = 0
    while True:
        async with asyncio.timeout(settings.idle_s):
            piece = await answer.content.readany()
        length += len(piece)
        if length > MOST_BYTES:
            raise Unreadable(f"it is longer than {MOST_BYTES >> 20} MiB")
        if events is None:
            whole += piece
            if not piece:
                assembly.add_whole(bytes(whole))
                return
            continue
        for data in events.feed(piece) if piece else events.end():
            if data.strip() == b"[DONE]":
                await _drain(answer)
                return
            assembly.add_piece(data)
        if not piece:
            if assembly.finish_reason:
                return
            raise aiohttp.ClientPayloadError("the stream ended before the answer did")


async def _drain(answer: aiohttp.ClientResponse) -> None:
    """Read the few bytes after the last event, so that the connection can be reused."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_BYTES_S):
            await answer.content.readany()


def _broken_error(
    settings: ModelSettings, assembly: ReplyAssembly, reason: str, exc: Exception
) -> Exception:
    """Convert a broken connection. After the first token there is no retry: the call may be
    billed.
    """
    where = "during the answer" if assembly.begun else "before the answer"
    error = ModelUnavailable(
        f"the model endpoint {settings.shown} failed {where}: {reason}",
        hint=f"check that the endpoint runs and is reachable; see {settings.url_name}",
    )
    hopeless = isinstance(exc, aiohttp.ClientSSLError | aiohttp.InvalidURL)
    return error if assembly.begun or hopeless else _Transient(error)


def _reason(exc: Exception, settings: ModelSettings) -> str:
    if isinstance(exc, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return f"its TLS certificate cannot be verified ({shown(exc, settings)})"
    cause = exc.os_error if isinstance(exc, aiohttp.ClientConnectorError) else exc
    return shown(getattr(cause, "strerror", None) or cause or type(cause).__name__, settings)


def _without_key_in(reply: Reply, settings: ModelSettings) -> Reply:
    """Remove the key, which only a malicious endpoint would repeat."""
    return Reply(
        text=without_key(reply.text, settings),
        tool_calls=tuple(
            ToolCall(
                without_key(call.id, settings),
                without_key(call.name, settings),
                without_key(call.arguments, settings),
            )
            for call in reply.tool_calls
        ),
        finish_reason=shown(reply.finish_reason, settings),
        refusal=without_key(reply.refusal, settings),
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
    )
