"""HTTP as a registry needs it: TLS, proxies, redirects, retries, and one deadline over all.

Knows nothing of manifests or credentials; an `Authorization` it is given goes to the origin it
was given for and to no other. Blocking: runs in threads. Fails with RegistryUnavailable when
nobody answers in time, InvalidConfiguration for a bad ca_file, Cancelled when told to stop.
"""

from __future__ import annotations

import ssl
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode, urljoin, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, LocationParseError, SSLError

from sandkasten.errors import (
    Cancelled,
    InvalidConfiguration,
    InvalidImage,
    RegistryUnavailable,
)
from sandkasten.images.registry.connection_cutter import Watcher
from sandkasten.model.addresses import is_loopback
from sandkasten.model.proxies import Proxy, proxies_in, proxy_for
from sandkasten.model.retries import Backoff, retry_after_s
from sandkasten.model.spelling import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from urllib3 import BaseHTTPResponse

_AGENT: Final = "sandkasten"
_MOST_REDIRECTS: Final = 5
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
# Overloaded, or broken in a way that passes; everything else is an answer.
TRY_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_MOST_RETRY_AFTER_S: Final = 60.0
# What OpenSSL says, old and new, when plain text answers a handshake.
_NOT_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"}
)


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


@dataclass(slots=True)
class Errand:
    """One pull: its patience, when it must be over, and whether somebody called it off."""

    patience: Patience = field(default_factory=Patience)
    called_off: threading.Event = field(default_factory=threading.Event)
    ends_at: float = 0.0

    def __post_init__(self) -> None:
        self.ends_at = time.monotonic() + self.patience.whole_s

    def check(self, what: str) -> None:
        if self.called_off.is_set():
            raise Cancelled(f"{what} was called off")
        if time.monotonic() >= self.ends_at:
            raise RegistryUnavailable(
                f"{what} was not done within {self.patience.whole_s:g} s",
                hint="try again: layers that arrived are kept (images.pull_timeout_seconds)",
            )

    def pause(self, seconds: float, what: str) -> None:
        self.called_off.wait(min(seconds, max(0.0, self.ends_at - time.monotonic())))
        self.check(what)

    def timeout(self) -> urllib3.Timeout:
        left = max(0.01, self.ends_at - time.monotonic())
        return urllib3.Timeout(
            connect=min(self.patience.connect_s, left), read=min(self.patience.silence_s, left)
        )


class NotTls(RegistryUnavailable):
    """The other side does not speak TLS at all: then plain HTTP may be all there is."""


class Connections:
    """The connections of one pull to one registry and to where it redirects."""

    def __init__(
        self, registry: str, errand: Errand, *, ca_file: str = "", environ: Mapping[str, str]
    ) -> None:
        self._registry = registry
        self._errand = errand
        self._environ = environ
        self._tls = _context(ca_file)
        self._managers: dict[Proxy | None, urllib3.PoolManager] = {}
        self._lock = threading.Lock()
        self._watcher = Watcher(errand)

    def close(self) -> None:
        self._watcher.close()
        with self._lock:
            for manager in self._managers.values():
                manager.clear()

    def open(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        authorization: str | None = None,
        form: Mapping[str, str] | None = None,
    ) -> BaseHTTPResponse:
        """The answer, its body unread; the caller releases it. `form` makes it a POST.

        An answer that asks to come back later is returned only when the attempts are used up.
        """
        what = f"asking {self._registry}"
        most = self._errand.patience.attempts
        failures = 0
        while True:
            self._errand.check(what)
            try:
                answer = self._follow(url, dict(headers), authorization, form)
            except (HTTPError, OSError) as exc:
                failures += 1
                self._give_up_on(exc, failures >= most)
                self._errand.pause(self._errand.patience.pause_s(failures), what)
                continue
            failures += 1
            if answer.status not in TRY_AGAIN or failures >= most:
                return answer
            asked_s = min(retry_after_s(answer.headers, time.time()), _MOST_RETRY_AFTER_S)
            pause_s = asked_s or self._errand.patience.pause_s(failures)
            # Not read to its end for the sake of the connection: it may have none.
            answer.close()
            self._errand.pause(pause_s, what)

    def _follow(
        self,
        url: str,
        headers: dict[str, str],
        authorization: str | None,
        form: Mapping[str, str] | None,
    ) -> BaseHTTPResponse:
        home = origin(url)
        for _ in range(_MOST_REDIRECTS + 1):
            sent = {"User-Agent": _AGENT, "Accept-Encoding": "identity", **headers}
            # A redirect leads to a store of blobs or to an attacker: neither may learn who we are.
            if authorization is not None and origin(url) == home:
                sent["Authorization"] = authorization
            if form is not None:
                sent["Content-Type"] = "application/x-www-form-urlencoded"
            answer = self._manager(url).request(
                "GET" if form is None else "POST",
                url,
                headers=sent,
                body=None if form is None else urlencode(form),
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
                timeout=self._errand.timeout(),
            )
            to = answer.headers.get("Location")
            if answer.status not in _REDIRECTS or not to:
                return answer
            # Not read to its end for the sake of the connection: it may have none.
            answer.close()
            if form is not None:
                raise InvalidImage(f"{self._registry} redirected a request for a token")
            url = _checked_target(self._registry, url, urljoin(url, to))
        raise InvalidImage(
            f"{self._registry} redirected more than {_MOST_REDIRECTS} times",
            hint="the registry is set up in a circle; ask its operator",
        )

    def _manager(self, url: str) -> urllib3.PoolManager:
        proxy = proxy_for(url, proxies_in(self._environ))
        with self._lock:
            if proxy not in self._managers:
                self._managers[proxy] = self._new_manager(proxy)
            return self._managers[proxy]

    def _new_manager(self, proxy: Proxy | None) -> urllib3.PoolManager:
        if proxy is None:
            manager = urllib3.PoolManager(maxsize=4, ssl_context=self._tls)
        else:
            login = proxy.authorization
            manager = urllib3.ProxyManager(
                proxy.url,
                maxsize=4,
                ssl_context=self._tls,
                proxy_headers={} if login is None else {"Proxy-Authorization": login},
            )
        self._watcher.watch(manager)
        return manager

    def body(self, answer: BaseHTTPResponse, most: int) -> bytes:
        """Up to `most` bytes of an answer. HTTPError or OSError when the connection breaks."""
        data = b""
        try:
            # A break shows itself only to whoever asks for more.
            while len(data) < most and (more := answer.read(most - len(data))):
                data += more
            return data
        finally:
            # One that was cut may look like one that ended, or like one that broke.
            self._errand.check(f"asking {self._registry}")

    def _give_up_on(self, exc: Exception, last: bool) -> None:
        """Raises what no further attempt can mend, and everything once it was the last one."""
        if isinstance(exc, LocationParseError):
            raise InvalidImage(f"{self._registry} answered with an address that is none") from exc
        reason = exc.args[0] if isinstance(exc, SSLError) and exc.args else exc
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
                f"{self._registry} cannot be reached: {_said(exc)}",
                hint="check the name, the network and any proxy; then try again",
                registry=self._registry,
            ) from exc


def origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return (
        parts.scheme,
        (parts.hostname or "").lower(),
        parts.port or {"http": 80}.get(parts.scheme, 443),
    )


def loopback(host: str) -> bool:
    """Whether a host, maybe with a port, is this machine and cannot be another one."""
    return is_loopback(urlsplit(f"//{host}").hostname or "")


def _context(ca_file: str) -> ssl.SSLContext:
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


def _checked_target(registry: str, here: str, target: str) -> str:
    scheme = urlsplit(target).scheme
    # What began in private must not go on in the open.
    if scheme not in ("http", "https") or (scheme == "http" and not here.startswith("http:")):
        raise InvalidImage(
            f"{registry} redirected to {shown(scheme)}, which is not followed",
            hint="the registry must redirect to https",
        )
    return target


def _said(exc: BaseException) -> str:
    """The reason in the system's words, without the address of an object of ours."""
    seen: BaseException | None = exc
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        seen = seen.__cause__ or seen.__context__
    name = type(exc).__name__
    return {
        "ReadTimeoutError": "no answer in time",
        "ConnectTimeoutError": "no answer in time",
    }.get(name, name)
