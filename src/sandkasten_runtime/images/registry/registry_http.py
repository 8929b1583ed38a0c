"""HTTP as a registry needs it: TLS, proxies, redirects, retries, and one deadline over all.

Knows nothing of manifests or credentials. An `Authorization` goes to the origin it was given for
and to no other. Raises RegistryUnavailable if the registry does not answer in time,
InvalidConfiguration for an invalid ca_file, and InvalidImage for a redirect that is not followed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import ssl
import time
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode, urljoin, urlsplit

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from sandkasten.errors import InvalidConfiguration, InvalidImage, RegistryUnavailable
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.addresses import is_loopback
from sandkasten.model.proxies import proxies_in, proxy_arguments
from sandkasten.model.retries import Backoff, retry_after_s
from sandkasten.model.spelling import shown
from sandkasten.outgoing_http import new_http_session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

_log = logging.getLogger("sandkasten.registry")

BROKEN: Final = (aiohttp.ClientError, HttpProcessingError, OSError)
"""The errors of a connection that failed or broke."""
_AGENT: Final = "sandkasten"
_MOST_REDIRECTS: Final = 5
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
# Overloaded, or broken in a way that passes; everything else is an answer.
TRY_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_MOST_RETRY_AFTER_S: Final = 60.0
# Signed addresses in redirects are long.
_MOST_HEADER_LINE: Final = 65536
# The reasons of OpenSSL, old and new, when plain text answers a handshake.
_NOT_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"}
)
_QUOTED: Final = re.compile(r"[!-~]+\Z")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for what. Attempts are per request and start anew with each byte got."""

    attempts: int = 5
    first_pause_s: float = 0.5
    longest_pause_s: float = 15.0
    connect_s: float = 10.0
    silence_s: float = 30.0
    whole_s: float = 3600.0

    def pause_s(self, failures: int) -> float:
        return Backoff(self.first_pause_s, self.longest_pause_s).pause_s(failures)


class NotTls(RegistryUnavailable):
    """The other side does not speak TLS at all: then plain HTTP may be all there is."""


@asynccontextmanager
async def connected(
    registry: str, patience: Patience, *, ca_file: str = "", environ: Mapping[str, str]
) -> AsyncIterator[Connections]:
    """Yield connections. The block ends with RegistryUnavailable once `patience.whole_s` is over.

    A timeout of a socket starts anew with each byte, so a server that sends one now and then
    would hold a reader for as long as it likes.
    """
    tls = await asyncio.to_thread(_context, ca_file)
    deadline = asyncio.timeout(patience.whole_s)
    try:
        async with (
            deadline,
            # Without compression: digests are those of what was sent.
            new_http_session(
                aiohttp.TCPConnector(ssl=tls),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=patience.connect_s, sock_read=patience.silence_s
                ),
                headers={"User-Agent": _AGENT},
                header_line_bytes=_MOST_HEADER_LINE,
            ) as session,
        ):
            yield Connections(registry, patience, session, environ)
    except TimeoutError as exc:
        if not deadline.expired():
            raise
        raise RegistryUnavailable(
            f"asking {registry} was not done within {patience.whole_s:g} s",
            hint="try again: layers that arrived are kept (images.pull_timeout_seconds)",
        ) from exc


class Connections:
    """The connections of one pull to one registry and to where it redirects."""

    def __init__(
        self,
        registry: str,
        patience: Patience,
        session: aiohttp.ClientSession,
        environ: Mapping[str, str],
    ) -> None:
        self.patience = patience
        self._registry = registry
        self._session = session
        self._proxies = proxies_in(environ)

    async def open(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        authorization: str | None = None,
        form: Mapping[str, str] | None = None,
    ) -> aiohttp.ClientResponse:
        """Return the answer, its body unread; the caller closes it. `form` makes it a POST.

        An answer that asks to come back later is returned only when the attempts are used up.
        """
        most = self.patience.attempts
        failures = 0
        while True:
            failures += 1
            pause_s = self.patience.pause_s(failures)
            try:
                answer = await self._follow(url, headers, authorization, form)
            except BROKEN as exc:
                self._give_up_on(exc, failures >= most)
            else:
                if answer.status not in TRY_AGAIN or failures >= most:
                    return answer
                # Not read to its end for the sake of the connection: it may have none.
                answer.close()
                asked_s = retry_after_s(answer.headers, time.time())
                pause_s = min(asked_s, _MOST_RETRY_AFTER_S) or pause_s
            await asyncio.sleep(pause_s)

    async def _follow(
        self,
        url: str,
        headers: Mapping[str, str],
        authorization: str | None,
        form: Mapping[str, str] | None,
    ) -> aiohttp.ClientResponse:
        home = origin(url)
        method = "GET" if form is None else "POST"
        for _ in range(_MOST_REDIRECTS + 1):
            sent = dict(headers)
            # A redirect leads to a store of blobs or to an attacker: neither may learn who we are.
            if authorization is not None and origin(url) == home:
                sent["Authorization"] = authorization
            if form is not None:
                sent["Content-Type"] = "application/x-www-form-urlencoded"
            answer = await self._session.request(
                method,
                # A signature covers the address as it was written, so it is not quoted again.
                URL(url, encoded=_QUOTED.match(url) is not None),
                headers=sent,
                data=None if form is None else urlencode(form).encode(),
                allow_redirects=False,
                **proxy_arguments(url, self._proxies),
            )
            # Without the query, which may be a signature.
            _log.debug("%s %s: %d", method, url.partition("?")[0], answer.status)
            to = answer.headers.get("Location")
            if answer.status not in _REDIRECTS or not to:
                return answer
            # Not read to its end for the sake of the connection: it may have none.
            answer.close()
            if form is not None:
                raise InvalidImage(f"{self._registry} redirected a request for a token")
            url = _redirected(self._registry, url, to)
        raise InvalidImage(
            f"{self._registry} redirected more than {_MOST_REDIRECTS} times",
            hint="the registry is set up in a circle; ask its operator",
        )

    def _give_up_on(self, exc: BaseException, last: bool) -> None:
        """Raise errors that another attempt cannot fix, and every error of the last attempt."""
        if isinstance(exc, aiohttp.InvalidURL):
            raise InvalidImage(f"{self._registry} answered with an invalid address") from exc
        reason = _reason(exc)
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise RegistryUnavailable(
                f"the certificate of {self._registry} is not trusted: {reason.verify_message}",
                hint=f"name its authority: images.registries.{self._registry}.ca_file",
                registry=self._registry,
            ) from exc
        if getattr(reason, "reason", "") in _NOT_TLS:
            raise NotTls(
                f"{self._registry} does not speak TLS where it was asked to",
                hint="check its address and its redirects",
                registry=self._registry,
            ) from exc
        if last:
            raise RegistryUnavailable(
                f"{self._registry} cannot be reached: {_described(reason)}",
                hint="check the name, the network and any proxy; then try again",
                registry=self._registry,
            ) from exc


async def read_some(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """Return what has arrived of a body, at most `most` bytes; b"" at its end.

    Raise one of BROKEN if the connection broke and everything that had arrived was returned.
    """
    try:
        return await answer.content.read(most)
    except BROKEN:
        # aiohttp raises before it returns what is in its buffer; a download would resume
        # further back than where it broke, and might never come further.
        data = answer.content._read_nowait(most)
        if not data:
            raise
        return data


def origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return (
        parts.scheme,
        (parts.hostname or "").lower(),
        parts.port or {"http": 80}.get(parts.scheme, 443),
    )


def loopback(host: str) -> bool:
    """Return whether a host, maybe with a port, is this machine and cannot be another one."""
    return is_loopback(urlsplit(f"//{host}").hostname or "")


def _context(ca_file: str) -> ssl.SSLContext:
    """Return a context that trusts what the machine and the file contain now."""
    machine = ssl.get_default_verify_paths()
    return _loaded(ca_file, *map(_version, (ca_file, machine.cafile, machine.capath)))


def _version(path: str | None) -> tuple[str, int] | None:
    try:
        return (path, os.stat(path).st_mtime_ns) if path else None
    except OSError:
        return None


@lru_cache(maxsize=8)
def _loaded(ca_file: str, *versions: tuple[str, int] | None) -> ssl.SSLContext:
    """Loaded once: the certificates of a machine take some 30 ms of processor time."""
    del versions
    context = ssl.create_default_context()
    if ca_file:
        try:
            context.load_verify_locations(ca_file)
        except (OSError, ssl.SSLError) as exc:
            raise InvalidConfiguration(
                f"ca_file {ca_file} cannot be used: {exc.strerror or 'it holds no certificate'}",
                hint="name a file of PEM certificates",
                setting="images.registries",
            ) from exc
    return context


def _redirected(registry: str, here: str, location: str) -> str:
    """Return the address that a redirect leads to, if it may be followed."""
    try:
        target = urljoin(here, location)
        scheme = origin(target)[0]
        URL(target)
    except ValueError as exc:
        raise InvalidImage(f"{registry} redirected to an invalid address") from exc
    # Never follow a redirect from https to http.
    if scheme not in ("http", "https") or (scheme == "http" and not here.startswith("http:")):
        raise InvalidImage(
            f"{registry} redirected to {shown(scheme)}, which is not followed",
            hint="the registry must redirect to https",
        )
    return target


def _reason(exc: BaseException) -> BaseException:
    """Return the error of the system or of TLS that aiohttp wrapped."""
    if isinstance(exc, aiohttp.ClientConnectorCertificateError):
        return exc.certificate_error
    return exc.os_error if isinstance(exc, aiohttp.ClientConnectorError) else exc


def _described(reason: BaseException) -> str:
    """Return the reason in the system's words, without the address of a Python object."""
    if isinstance(reason, aiohttp.ClientHttpProxyError):
        return f"the proxy answered {reason.status}"
    if isinstance(reason, socket.gaierror):
        return str(reason.strerror)
    if isinstance(reason, OSError) and reason.errno:
        return os.strerror(reason.errno)
    return "no answer in time" if isinstance(reason, TimeoutError) else type(reason).__name__
