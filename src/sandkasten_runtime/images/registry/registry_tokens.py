"""Answer a registry's 401: with a Basic header, or a bearer token from the address that it names.

Tokens are kept until shortly before they expire, one per scope. A secret is sent to the registry it
belongs to, or to the token server that this registry names, over TLS; over plain HTTP only from
loopback to loopback, and to an `insecure` registry's own host. Raises Unauthorized, and
RegistryUnavailable if the token server does not answer.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode, urlsplit

from sandkasten.errors import InvalidImage, RegistryUnavailable, Unauthorized
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.spelling import shown
from sandkasten.outgoing_http import read_start
from sandkasten_runtime.images.registry.registry_http import BROKEN, TRY_AGAIN, loopback

if TYPE_CHECKING:
    from sandkasten_runtime.images.registry.registry_credentials import Access
    from sandkasten_runtime.images.registry.registry_http import Connections

_MOST_ANSWER: Final = 1024 * 1024
_MOST_HEADER: Final = 8192
# A registry that does not state a token's lifetime means one minute.
_UNSAID_S: Final = 60.0
# A token that expires during a request is refused; fetch the next one before that.
_EARLY_S: Final = 10.0
_PAIR: Final = re.compile(r'\s*([A-Za-z_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))\s*(?:,|\Z)')
_CLIENT: Final = "sandkasten"


@dataclass(frozen=True, slots=True)
class Challenge:
    scheme: str
    realm: str = ""
    service: str = ""
    scope: str = ""


def parse_challenge(header: str) -> Challenge:
    """Parse one `WWW-Authenticate` header. A scheme other than Bearer and Basic keeps its name."""
    scheme, _, rest = header.strip()[:_MOST_HEADER].partition(" ")
    parameters: dict[str, str] = {}
    at = 0
    while pair := _PAIR.match(rest, at):
        value = pair[2] if pair[2] is not None else pair[3]
        parameters.setdefault(pair[1].lower(), re.sub(r"\\(.)", r"\1", value))
        at = pair.end()
        if at >= len(rest):
            break
    return Challenge(
        scheme.lower(),
        parameters.get("realm", ""),
        parameters.get("service", ""),
        parameters.get("scope", ""),
    )


class Tokens:
    """The Authorization to send to one registry, learnt from its challenges."""

    def __init__(self, registry: str, access: Access, connections: Connections) -> None:
        self._registry = registry
        self._access = access
        self._connections = connections
        self._lock = asyncio.Lock()
        self._kept: dict[str, tuple[str, float]] = {}
        self._basic = False

    def header(self, scope: str) -> str | None:
        """Return what is known to work for a scope, without a request."""
        if self._access.token:
            return f"Bearer {_printable(self._access.token, self._registry)}"
        if self._basic:
            return self._access.basic()
        token, until = self._kept.get(scope, ("", 0.0))
        return f"Bearer {token}" if time.monotonic() < until else None

    async def answer(self, header: str | None, scope: str, tried: str | None) -> str:
        """Return the header that answers a challenge. `tried` is what was sent and refused."""
        challenge = parse_challenge(header or "")
        async with self._lock:
            current = self.header(scope)
            # Another request may have answered the same challenge in the meantime.
            if current is not None and current != tried:
                return current
            if self._access.token:
                raise self.refused()
            if challenge.scheme == "basic":
                basic = self._access.basic()
                if basic is None or tried == basic:
                    raise self.refused()
                self._basic = True
                return basic
            if challenge.scheme != "bearer" or not challenge.realm:
                raise Unauthorized(
                    f"{self._registry} asks for authentication of an unknown kind",
                    hint="only Basic and Bearer are spoken",
                    registry=self._registry,
                )
            token, lives_s = await self._fetch(challenge, scope)
            self._kept[scope] = (token, time.monotonic() + max(0.0, lives_s - _EARLY_S))
            return f"Bearer {token}"

    def refused(self) -> Unauthorized:
        if self._access.helper:
            hint = (
                f"docker's credential helper {self._access.helper} is not run: "
                f"set images.registries.{self._registry}"
            )
        elif self._access.anonymous:
            hint = (
                "it may not exist, or need a login: set "
                f"images.registries.{self._registry}.username and .password_file"
            )
        else:
            hint = "check the user and the password or token"
        return Unauthorized(
            f"{self._registry} refused {'us' if self._access.anonymous else 'the credentials'}",
            hint=hint,
            registry=self._registry,
        )

    async def _fetch(self, challenge: Challenge, scope: str) -> tuple[str, float]:
        realm = self._checked_realm(challenge.realm)
        fields = {"service": challenge.service, "scope": challenge.scope or scope}
        fields = {name: value for name, value in fields.items() if value}
        headers = {"Accept": "application/json"}
        if self._access.identity_token:
            answer = await self._connections.open(
                realm,
                headers=headers,
                form={
                    **fields,
                    "grant_type": "refresh_token",
                    "client_id": _CLIENT,
                    "refresh_token": self._access.identity_token,
                },
            )
        else:
            query = f"{'&' if urlsplit(realm).query else '?'}{urlencode(fields)}" if fields else ""
            answer = await self._connections.open(
                realm + query, headers=headers, authorization=self._access.basic()
            )
        try:
            body = await read_start(answer, _MOST_ANSWER + 1)
        except BROKEN as exc:
            raise RegistryUnavailable(
                f"the token server of {self._registry} broke off while it answered",
                hint="try again",
                registry=self._registry,
            ) from exc
        finally:
            answer.close()
        if answer.status in TRY_AGAIN:
            raise RegistryUnavailable(
                f"the token server of {self._registry} answered {answer.status}",
                hint="try again later",
                registry=self._registry,
            )
        if answer.status != 200:
            raise self.refused()
        return self._understood(body)

    def _understood(self, body: bytes) -> tuple[str, float]:
        try:
            tree = json.loads(body) if len(body) <= _MOST_ANSWER else None
        except (ValueError, RecursionError):
            tree = None
        tree = tree if isinstance(tree, dict) else {}
        token = tree.get("token") or tree.get("access_token")
        if not isinstance(token, str):
            raise InvalidImage(f"the token server of {self._registry} gave no token")
        lives_s = tree.get("expires_in")
        if not isinstance(lives_s, int | float) or lives_s <= 0:
            lives_s = _UNSAID_S
        return _printable(token, self._registry), float(lives_s)

    def _checked_realm(self, realm: str) -> str:
        parts = urlsplit(realm)
        own = urlsplit(f"//{self._registry}").hostname == parts.hostname and self._access.insecure
        local = loopback(self._registry) and loopback(parts.netloc)
        plain = parts.scheme == "http" and (own or local)
        if (parts.scheme != "https" and not plain) or not parts.hostname or parts.username:
            raise Unauthorized(
                f"{self._registry} names a token server that is not safe: {shown(realm)}",
                hint="a token server must speak https",
                registry=self._registry,
            )
        return realm.partition("#")[0]


def _printable(token: str, registry: str) -> str:
    # A line break would end the header and inject another.
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidImage(f"the token for {registry} is not a token")
    return token
