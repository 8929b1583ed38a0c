"""Access to previews: by a signed link, by the cookie that it sets, by a token or a key, or public.

Browsers attach the cookie to every request, also to those that other pages cause. So a request with
the cookie must come from the preview itself, or be a navigation. A request without a valid
credential is Unauthorized (401, or 403 for an invalid token); a sandbox of another tenant is
SessionNotFound, as an unknown one.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote, urlsplit

from sandkasten.errors import (
    BackendUnavailable,
    PolicyDenied,
    SandkastenError,
    SessionNotFound,
    Unauthorized,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.access.api_keys import id_of_key
from sandkasten.model.access.preview_links import (
    LINK_PARAMETER,
    LOCAL_DOMAIN,
    MAX_TTL_S,
    Grant,
    Preview,
    PreviewTarget,
    SandboxPreviews,
    domain_of,
    grant_of,
    link_id_of,
    link_ttl,
    sign,
    target_of,
    verify,
)
from sandkasten_server.api.proxy.proxy_cookies import (
    PLAIN_COOKIE,
    TLS_COOKIE,
    TRAFFIC_HEADER,
    own_cookies,
)
from sandkasten_server.api.request.request_guard import PreviewHosts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.responses import Response

    from sandkasten.model.access.preview_links import Kind, Verdict
    from sandkasten.model.access.tenancy import Principal
    from sandkasten.model.ids import SandboxId
    from sandkasten.ports import Clock, PublicPorts
    from sandkasten_server.api.previews.preview_rules import PreviewRules
    from sandkasten_server.api.request.authentication import Doorkeeper

_SAFE: Final = frozenset({"GET", "HEAD"})
# Every printable ASCII character that a browser does not read as another one.
_KEPT: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in "\\#")


@dataclass(frozen=True, slots=True)
class Entry:
    """The parts of a request that decide whether it is admitted."""

    target: PreviewTarget
    owner: str
    """The tenant of the sandbox."""
    method: str
    """`WS` for a WebSocket."""
    headers: Mapping[str, str]
    cookies: Sequence[str]
    query: bytes


@dataclass(frozen=True, slots=True)
class Admitted:
    recheck: Callable[[], object]
    """Raises when the request would no longer be admitted."""
    principal: Principal | None = None
    """Whose key or token admitted it; None for a link, a cookie, a traffic token or all clients."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The answer to a valid link: a redirect that sets the cookie and drops the token."""

    token: str
    expires_at: int


class Previews:
    """The previews of one daemon. `scheme` and `port` are those of its own listener."""

    def __init__(self, rules: PreviewRules, ports: PublicPorts, clock: Clock) -> None:
        self.rules = rules
        self.scheme = "http"
        self.port = 80
        self._ports = ports
        self._clock = clock
        self.is_traffic_token: Callable[[str, str], bool] | None = None
        """Whether a token in `TRAFFIC_HEADER` opens the ports of a sandbox; None: none does."""
        self.resume: Callable[[SandboxId], Awaitable[None]] | None = None
        """Resumes a paused sandbox that requests resume; None: none does."""
        self.gone: Callable[[str], Response] | None = None
        """Answers requests for an address of the domain that belongs to no sandbox, by its label;
        None: a page with status 404.
        """
        self._domains = (LOCAL_DOMAIN, *([rules.domain] if rules.domain else []))
        self.hosts = PreviewHosts(*self._domains)

    def domain_of(self, name: str) -> str | None:
        return domain_of(name, self._domains)

    def gone_answer(self, name: str) -> Response | None:
        """Return what `gone` answers for a host name that belongs to no sandbox of the client."""
        if self.gone is None or self.domain_of(name) != self.rules.domain:
            return None
        return self.gone(name.partition(".")[0].partition("-")[2])

    # ---- links

    async def link(
        self,
        target: PreviewTarget,
        *,
        public: bool | None,
        ttl_s: float | None,
        client_origin: tuple[str, int] | None,
    ) -> Preview:
        """Return a link to a port. `public` opens or closes it to all; None leaves it as it is.

        `client_origin` is the scheme and port by which the client reaches the daemon on loopback.
        """
        now = self._clock.now()
        lasts_s = link_ttl(ttl_s)
        # Another daemon may have revoked all links, and an old series would make a dead one.
        await self._ports.reload(target.sandbox_id)
        if public:
            self._check_public()
            await self._ports.publish(target, None if ttl_s is None else now + lasts_s)
        elif public is False:
            await self._close(target)
        base = self._base(target, client_origin)
        if self.is_public(target):
            return Preview(f"{base}/", target.port, True, self._ports.public_until(target))
        series = self._ports.series(target.sandbox_id)
        grant = Grant(int(now + lasts_s), secrets.token_hex(8), series)
        url = f"{base}/?{LINK_PARAMETER}={sign(self._ports.key, 'link', target, grant)}"
        return Preview(url, target.port, False, float(grant.expires_at), grant.link_id)

    async def revoke(self, sandbox_id: SandboxId, link: str | None) -> None:
        """Revoke one link, or all links of a sandbox, with the cookies that they set.

        Public ports stay public.
        """
        if link is None:
            await self._ports.revoke_all(sandbox_id)
        else:
            now = self._clock.now()
            await self._ports.revoke(sandbox_id, link_id_of(link), now=now, until=now + MAX_TTL_S)

    async def set_rules_of(self, sandbox_id: SandboxId, rules: SandboxPreviews) -> None:
        """Set the rules for all ports of a sandbox."""
        if rules.public:
            self._check_public()
        await self._ports.set_rules_of(sandbox_id, rules)

    def host_of(self, target: PreviewTarget) -> str | None:
        """Return the Host that the server on a port sees; None: that of the request."""
        return self._ports.rules_of(target.sandbox_id).host_of(target.port)

    def is_public(self, target: PreviewTarget) -> bool:
        return self.rules.allow_public and (
            self._ports.rules_of(target.sandbox_id).public is True
            or self._ports.is_public(target, self._clock.now())
        )

    async def _close(self, target: PreviewTarget) -> None:
        """Make a port private. Where all ports of the sandbox are public, all become private."""
        await self._ports.withdraw(target)
        rules = self._ports.rules_of(target.sandbox_id)
        if rules.public:
            await self._ports.set_rules_of(target.sandbox_id, replace(rules, public=None))

    def _check_public(self) -> None:
        if not self.rules.allow_public:
            raise PolicyDenied(
                "the operator does not allow public previews",
                hint="leave out public and share the link; the operator can set "
                "previews.allow_public",
            )

    def _base(self, target: PreviewTarget, client_origin: tuple[str, int] | None) -> str:
        if self.rules.domain is not None:
            port = self.rules.domain_port
            suffix = "" if port in (None, 443) else f":{port}"
            return f"https://{target.label}.{self.rules.domain}{suffix}"
        scheme, port = client_origin or (self.scheme, self.port)
        suffix = "" if port == (443 if scheme == "https" else 80) else f":{port}"
        return f"{scheme}://{target.label}.{LOCAL_DOMAIN}{suffix}"

    # ---- requests

    async def admit(self, entry: Entry, doorkeeper: Doorkeeper) -> Admitted | Exchange:
        try:
            return self._admit(entry, doorkeeper)
        except Unauthorized:
            if not await self._renewed(entry, doorkeeper):
                raise
            return self._admit(entry, doorkeeper)

    async def _renewed(self, entry: Entry, doorkeeper: Doorkeeper) -> bool:
        """Read again what a refused request may rely on; return whether to decide once more.

        Another daemon may have made the link, or opened the port, a moment ago.
        """
        reloaded = False
        with suppress(BackendUnavailable):
            reloaded = await self._ports.reload(entry.target.sandbox_id)
        return await doorkeeper.renew(entry.headers) or reloaded

    def _admit(self, entry: Entry, doorkeeper: Doorkeeper) -> Admitted | Exchange:
        target, now = entry.target, self._clock.now()
        token = token_of(entry.query)
        verdict: Verdict | None = None
        if token is not None:
            verdict, grant = self._read("link", target, token, now)
            if grant is not None and entry.method in _SAFE:
                cookie = sign(self._ports.key, "cookie", target, grant)
                return Exchange(cookie, grant.expires_at)
            if grant is not None:
                return self._until(target, grant)
        if self.is_public(target):
            return Admitted(lambda: self._check_still_public(target))
        if verdict is None:
            for cookie in entry.cookies:
                verdict, grant = self._read("cookie", target, cookie, now)
                if grant is not None:
                    check_site(entry)
                    return self._until(target, grant)
        traffic = entry.headers.get(TRAFFIC_HEADER)
        if traffic and self.is_traffic_token and self.is_traffic_token(target.sandbox_id, traffic):
            # It is valid until the sandbox ends, which ends the request too.
            return Admitted(lambda: None)
        if "authorization" in entry.headers:
            return self._by_key(entry, doorkeeper, verdict)
        raise self._refused(target, verdict)

    def _refused(self, target: PreviewTarget, verdict: Verdict | None) -> Unauthorized:
        if verdict is None and self._ports.rules_of(target.sandbox_id).public is False:
            # As E2B answers for such a sandbox.
            return Unauthorized(
                "the ports of this sandbox are private",
                hint=f"send the header {TRAFFIC_HEADER} with the token of the sandbox",
                http_status=403,
            )
        return _refused(target, verdict)

    def _by_key(
        self, entry: Entry, doorkeeper: Doorkeeper, verdict: Verdict | None
    ) -> Admitted | Exchange:
        try:
            principal = doorkeeper.admit(entry.headers, local=False)
        except SandkastenError:
            raise _refused(entry.target, verdict) from None
        if principal.tenant != entry.owner or not principal.may("sessions"):
            raise unknown_preview()
        return Admitted(lambda: doorkeeper.admit(entry.headers, local=False), principal)

    def _read(
        self, kind: Kind, target: PreviewTarget, token: str, now: float
    ) -> tuple[Verdict, Grant | None]:
        """Return the verdict on a token, and what it grants if it is valid."""
        series = self._ports.series(target.sandbox_id)
        verdict = verify(self._ports.key, kind, target, token, now, series=series)
        grant = grant_of(token, series)
        if verdict != "valid" or grant is None:
            return verdict, None
        if self._ports.is_revoked(target.sandbox_id, grant.link_id):
            return "revoked", None
        return verdict, grant

    def _until(self, target: PreviewTarget, grant: Grant) -> Admitted:
        return Admitted(lambda: self._check_grant(target, grant))

    def _check_grant(self, target: PreviewTarget, grant: Grant) -> None:
        if self._clock.now() >= grant.expires_at:
            raise _refused(target, "expired")
        ports, of = self._ports, target.sandbox_id
        if ports.series(of) != grant.series or ports.is_revoked(of, grant.link_id):
            raise _refused(target, "revoked")

    def _check_still_public(self, target: PreviewTarget) -> None:
        if not self.is_public(target):
            raise _refused(target, None)


def preview_target(name: str, domain: str) -> PreviewTarget:
    """Return the port that a host name belongs to; SessionNotFound if there is none."""
    target = target_of(name, domain)
    if target is None:
        raise unknown_preview()
    return target


def unknown_preview() -> SessionNotFound:
    return SessionNotFound(
        "no sandbox has this address",
        hint="it may have ended; sandkasten ls lists sandboxes, sandkasten url ID PORT makes links",
    )


def check_site(entry: Entry) -> None:
    """Refuse a request with the cookie that a page of another origin caused."""
    headers = entry.headers
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    own = origin is None or _is_own(origin, headers.get("host", ""))
    # Its own form on a page with `Referrer-Policy: no-referrer`.
    own = own or (origin == "null" and site == "same-origin")
    if origin is None and site is None:
        # A browser that sends neither with scripts and images of other pages still shows whose they
        # are, unless the page hides it. A navigation asks for HTML.
        referer = headers.get("referer")
        asks_page = entry.method in _SAFE and "text/html" in headers.get("accept", "")
        own = referer is None or asks_page or _is_own(referer, headers.get("host", ""))
    navigates = (
        entry.method in _SAFE
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )
    if not own or (site in ("cross-site", "same-site") and not navigates):
        raise PolicyDenied(
            "another page requested this private preview",
            hint="open it in a tab of its own, or make it public: sandkasten url ID PORT --public",
        )


def holds_key(headers: Mapping[str, str], doorkeeper: Doorkeeper) -> bool:
    """Return whether Authorization is, or could be, a credential of the daemon."""
    authorization = headers.get("authorization")
    if authorization is None:
        return False
    # Empty: the header was sent twice.
    if not authorization or id_of_key(authorization.partition(" ")[2].strip()) is not None:
        return True
    try:
        doorkeeper.admit({"authorization": authorization}, local=False)
    except SandkastenError:
        return False
    return True


def token_of(query: bytes) -> str | None:
    if LINK_PARAMETER.encode() not in query:
        return None
    parameters = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    return parameters.get(LINK_PARAMETER)


def without_token(query: bytes) -> bytes:
    name = LINK_PARAMETER.encode()
    return b"&".join(pair for pair in query.split(b"&") if pair.partition(b"=")[0] != name)


def clean_location(path: bytes, query: bytes) -> str:
    """Return the address without the token. It cannot lead a browser to another host."""
    rest = without_token(query)
    text = (path + (b"?" + rest if rest else b"")).decode("latin-1")
    text = quote(text, safe=_KEPT, encoding="latin-1")
    # Two slashes would begin another host.
    return f"/.{text}" if text.startswith("//") else text


def cookie_header(exchange: Exchange, *, tls: bool, now: float) -> str:
    """Return the Set-Cookie header: only for this host, and hidden from scripts."""
    name = TLS_COOKIE if tls else PLAIN_COOKIE
    lasts_s = max(1, int(exchange.expires_at - now))
    header = f"{name}={exchange.token}; Path=/; Max-Age={lasts_s}; HttpOnly; SameSite=Lax"
    return f"{header}; Secure" if tls else header


def cookies_of(raw: Sequence[tuple[bytes, bytes]], *, tls: bool) -> list[str]:
    values = (value.decode("latin-1") for name, value in raw if name == b"cookie")
    return own_cookies(values, tls=tls)


def _is_own(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def _refused(target: PreviewTarget, verdict: Verdict | None) -> Unauthorized:
    hint = f"make a new link: sandkasten url {target.sandbox_id} {target.port}"
    if verdict == "expired":
        return Unauthorized("the link to this preview has expired", hint=hint)
    if verdict == "revoked":
        return Unauthorized("the link to this preview was revoked", hint=hint)
    if verdict == "false":
        message = "this link does not open this preview, or it was revoked"
        return Unauthorized(message, hint=hint, http_status=403)
    return Unauthorized("this preview is private", hint=hint)
