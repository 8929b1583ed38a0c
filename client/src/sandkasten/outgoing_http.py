"""Requests to HTTP servers: the aiohttp session they are sent with, and bounded reads of answers.

Every session of the product comes from here, so that no server can send a request to another
address, keep a cookie here, or fill the memory. Imports aiohttp, which takes time: a program that
may send no request imports this module in the function that sends one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_UNLIMITED: Final = aiohttp.ClientTimeout(total=None)


class UnexpectedRedirect(aiohttp.ClientPayloadError):
    """The server redirects a request whose caller follows no redirect."""

    def __init__(self, status: int) -> None:
        super().__init__("it redirects to another address")
        self.status = status


def new_http_session(
    connector: aiohttp.BaseConnector | None = None,
    *,
    timeout: aiohttp.ClientTimeout = _UNLIMITED,
    headers: Mapping[str, str] | None = None,
    skipped_headers: Sequence[str] = (),
    compressed: bool = False,
    header_line_bytes: int = 8190,
    response_class: type[aiohttp.ClientResponse] = aiohttp.ClientResponse,
    redirects_are_errors: bool = True,
) -> aiohttp.ClientSession:
    """Return a session. It keeps no cookies, and closes the connector.

    `headers` are sent to a proxy too, so credentials belong to the headers of a request.
    A redirect raises UnexpectedRedirect, unless the request has `allow_redirects=False`. With
    `redirects_are_errors=False`, every request must have it. Without `timeout`, each request needs
    a deadline of its caller. `skipped_headers` are those that aiohttp would add. With `compressed`,
    the server may compress its answers, and limits count decompressed bytes.
    """
    if not compressed:
        headers = {"Accept-Encoding": "identity", **(headers or {})}
    return aiohttp.ClientSession(
        connector=connector,
        headers=headers,
        skip_auto_headers=skipped_headers,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=compressed,
        # It would also read passwords from ~/.netrc; `model.proxies` finds the proxy of a request.
        trust_env=False,
        timeout=timeout,
        read_bufsize=1 << 18,
        max_line_size=header_line_bytes,
        max_field_size=header_line_bytes,
        response_class=response_class,
        trace_configs=[_REDIRECTS] if redirects_are_errors else [],
    )


async def _refuse_redirect(
    _: object, __: object, redirect: aiohttp.TraceRequestRedirectParams
) -> None:
    redirect.response.close()
    raise UnexpectedRedirect(redirect.response.status)


_REDIRECTS: Final = aiohttp.TraceConfig()
_REDIRECTS.on_request_redirect.append(_refuse_redirect)


async def read_start(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the first `most` bytes of a body, or all of a shorter one."""
    body = bytearray()
    while len(body) < most and (piece := await answer.content.read(most - len(body))):
        body += piece
    return bytes(body)


async def read_whole(
    answer: aiohttp.ClientResponse, most: int, too_long: Exception | None = None
) -> bytes:
    """Return a body. One of more than `most` bytes raises `too_long`, or ClientPayloadError."""
    body = await read_start(answer, most + 1)
    if len(body) > most:
        raise too_long or aiohttp.ClientPayloadError(f"its answer is longer than {most >> 20} MB")
    return body
