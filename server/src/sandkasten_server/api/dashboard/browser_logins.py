"""Logins of browsers: a key exchanged for a cookie, and single-use tickets for WebSockets.

A login is two secrets. The cookie is hidden from scripts. Browsers send it to every port of a host,
also to a server of a sandbox on another port of localhost, so by itself it is worth nothing: each
request must also have the proof in a header, which only a page of the origin that logged in has.
Logins are kept in memory and end with the daemon. A login lends a request its key, so a revoked
key ends it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING, Final

from sandkasten.errors import PolicyDenied, Unauthorized
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAIN_COOKIE: Final = "sandkasten_login"
# A browser accepts the prefix only over TLS, for the host itself and with Path=/.
TLS_COOKIE: Final = "__Host-sandkasten_login"
PROOF_HEADER: Final = "x-sandkasten-login"
LOGIN_S: Final = 12 * 3600.0
# A page opens its WebSocket at once.
TICKET_S: Final = 30.0
# The oldest goes: a client with a valid key must not fill the memory.
MAX_LOGINS: Final = 1000
MAX_TICKETS: Final = 1000
_SAFE: Final = frozenset({"GET", "HEAD"})
_LENT: Final[tuple[str, ...]] = ("authorization", "x-sandkasten-tenant")


@dataclass(frozen=True, slots=True)
class Login:
    """The secrets of a new login."""

    cookie: str
    proof: str
    expires_in_s: float


@dataclass(frozen=True, slots=True)
class _Row:
    authorization: str
    proof_hash: bytes
    expires_at: float


@dataclass(frozen=True, slots=True)
class _Ticket:
    headers: Mapping[str, str]
    """The credentials of the request that asked for it."""
    login: bytes | None
    expires_at: float


@dataclass(frozen=True, slots=True)
class Credentials:
    """The headers that identify a client, and the login that they are from."""

    headers: dict[str, str]
    login: bytes | None = None


class Logins:
    """The logins and tickets of one daemon. Times are those of a clock that never goes back."""

    def __init__(self) -> None:
        self._rows: dict[bytes, _Row] = {}
        self._tickets: dict[bytes, _Ticket] = {}

    # ---- logins

    def begin(self, authorization: str, now: float) -> Login:
        """Keep a checked Authorization header and return the secrets that stand for it."""
        self._forget(now)
        while len(self._rows) >= MAX_LOGINS:
            del self._rows[next(iter(self._rows))]
        cookie, proof = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._rows[_hashed(cookie)] = _Row(authorization, _hashed(proof), now + LOGIN_S)
        return Login(cookie, proof, LOGIN_S)

    def end(self, login: bytes | None) -> None:
        """End a login. An unknown one is ignored."""
        if login is not None:
            self._rows.pop(login, None)

    def is_live(self, login: bytes, now: float) -> bool:
        row = self._rows.get(login)
        return row is not None and now < row.expires_at

    def credentials(self, headers: dict[str, str], method: str, now: float) -> Credentials:
        """Return the headers with the key of the login that the cookie and the proof name.

        Without both they stay as they are. A request with another credential does not use a login.
        PolicyDenied if a page of another origin may have caused it.
        """
        cookie, proof = _cookie(headers), headers.get(PROOF_HEADER)
        if cookie is None or proof is None or "authorization" in headers:
            return Credentials(headers)
        login = _hashed(cookie)
        row = self._rows.get(login)
        if row is None or now >= row.expires_at:
            return Credentials(headers)
        if not hmac.compare_digest(row.proof_hash, _hashed(proof)):
            return Credentials(headers)
        _check_origin(headers, method)
        return Credentials({**headers, "authorization": row.authorization}, login)

    # ---- tickets

    def issue(self, credentials: Credentials, now: float) -> str:
        """Return a ticket that admits one WebSocket as the client that asked for it."""
        self._forget(now)
        while len(self._tickets) >= MAX_TICKETS:
            del self._tickets[next(iter(self._tickets))]
        ticket = secrets.token_urlsafe(32)
        headers = credentials.headers
        lent = {name: headers[name] for name in _LENT if name in headers}
        self._tickets[_hashed(ticket)] = _Ticket(lent, credentials.login, now + TICKET_S)
        return ticket

    def redeem(self, ticket: str, headers: dict[str, str], now: float) -> Credentials:
        """Return the credentials of a ticket and forget it; Unauthorized if it is not valid."""
        stored = self._tickets.pop(_hashed(ticket), None)
        if stored is None or now >= stored.expires_at:
            raise Unauthorized(
                "the ticket is not valid, has expired or was used",
                hint="get a new one for each WebSocket: POST /v1/tickets",
            )
        if stored.login is not None and not self.is_live(stored.login, now):
            raise logged_out()
        return Credentials({**headers, **stored.headers}, stored.login)

    def _forget(self, now: float) -> None:
        for key in [key for key, row in self._rows.items() if now >= row.expires_at]:
            del self._rows[key]
        for key in [key for key, ticket in self._tickets.items() if now >= ticket.expires_at]:
            del self._tickets[key]


def logged_out() -> Unauthorized:
    return Unauthorized("this login has ended", hint="log in again")


def login_cookie(value: str, *, lasts_s: float, tls: bool) -> str:
    """Return a Set-Cookie header; a lifetime of 0 deletes the cookie."""
    name = TLS_COOKIE if tls else PLAIN_COOKIE
    header = f"{name}={value}; Path=/; Max-Age={int(lasts_s)}; HttpOnly; SameSite=Strict"
    return f"{header}; Secure" if tls else header


def _cookie(headers: Mapping[str, str]) -> str | None:
    """Return the login in a Cookie header; None without one, or with two different ones.

    The name that only TLS allows wins: no page of another host can set it.
    """
    pairs = [cookie.partition("=") for cookie in headers.get("cookie", "").split(";")]
    for wanted in (TLS_COOKIE, PLAIN_COOKIE):
        values = {value.strip() for name, _, value in pairs if name.strip() == wanted}
        if values:
            return values.pop() if len(values) == 1 else None
    return None


def _check_origin(headers: Mapping[str, str], method: str) -> None:
    """Refuse what another page may have caused. The guard has compared Origin with Host."""
    site = headers.get("sec-fetch-site")
    if site not in (None, "same-origin") or (method not in _SAFE and "origin" not in headers):
        raise PolicyDenied(
            "a request with a login must come from the dashboard",
            hint="send the key in Authorization instead",
        )


def _hashed(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
