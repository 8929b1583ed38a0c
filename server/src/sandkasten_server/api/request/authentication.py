"""Authentication: the principal of a request, decided before its content is read.

Keys are compared as hashes in constant time and appear in no message and no log. Anything but one
well-formed live key, or a valid token of the configured issuer, is Unauthorized, whatever is wrong
with it.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

from sandkasten.errors import PolicyDenied, Unauthorized
from sandkasten.model.access.api_keys import hash_key
from sandkasten.model.access.tenancy import Principal, Scope, checked_tenant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Scope as Connection

    from sandkasten.model.access.tenancy import TenantQuota
    from sandkasten.ports import Clock, Keys
    from sandkasten_server.api.request.jwt_verifier import TokenVerifier

# Far above any of our keys; a longer one is not worth hashing.
_MAX_KEY: Final = 512
# Identity providers put groups and profiles into tokens.
_MAX_TOKEN: Final = 8192
_TENANT_HEADER: Final = "x-sandkasten-tenant"
_STRANGER: Final = Principal(tenant="", scopes=frozenset())


def is_local(scope: Connection) -> bool:
    """Return whether the request came over the Unix socket, which has a path and no port."""
    server = scope.get("server")
    return server is not None and server[1] is None


class Doorkeeper:
    """Finds the principal of a request. `open_loopback`: loopback clients need no key."""

    def __init__(
        self,
        *,
        clock: Clock,
        keys: Keys | None = None,
        api_key: str | None = None,
        tokens: TokenVerifier | None = None,
        open_loopback: bool = False,
        default_quota: TenantQuota | None = None,
    ) -> None:
        self._clock = clock
        self._keys = keys
        self._configured = None if api_key is None else hash_key(api_key)
        self._tokens = tokens
        self._open_loopback = open_loopback
        self._operator = Principal() if default_quota is None else Principal(quota=default_quota)

    @property
    def stranger(self) -> Principal:
        """Return the anonymous principal, which has no scope."""
        return _STRANGER

    def admit(self, headers: Mapping[str, str], *, local: bool) -> Principal:
        """Return the principal. `local`: the request came over the Unix socket of the operator."""
        principal = self._who(headers.get("authorization"), local=local)
        wanted = headers.get(_TENANT_HEADER)
        if wanted is None or wanted == principal.tenant:
            return principal
        if not principal.may("admin"):
            raise PolicyDenied(
                "this key cannot act as another tenant", hint="use a key with scope admin"
            )
        return Principal(
            tenant=checked_tenant(wanted), scopes=principal.scopes, key_id=principal.key_id
        )

    def knows_operator(self, headers: Mapping[str, str], scope: Connection) -> bool:
        """Return whether a request for a route that requires no key comes from an operator."""
        try:
            return self.admit(headers, local=is_local(scope)).may("admin")
        except (Unauthorized, PolicyDenied):
            return False

    async def renew(self, headers: Mapping[str, str]) -> bool:
        """Read the issuer's keys again for a refused token; return whether to ask once more."""
        token = _bearer(headers.get("authorization"))
        if self._tokens is None or token is None or not _is_token(token):
            return False
        return await self._tokens.refresh(token)

    @property
    def is_open(self) -> bool:
        """Return whether a loopback request may come without a key.

        Once a key exists, it may not: a proxy on this machine would give every client the
        operator's rights. A revoked or expired last key changes nothing; the operator has the
        socket.
        """
        return self._open_loopback and (self._keys is None or not self._keys.any_made())

    def _who(self, authorization: str | None, *, local: bool) -> Principal:
        if authorization is None:
            if local or self.is_open:
                return self._operator
            raise _refused()
        key = _bearer(authorization)
        if key is None:
            raise _refused()
        if self._tokens is not None and _is_token(key):
            return self._tokens.principal(key)
        if len(key) > _MAX_KEY:
            raise _refused()
        hashed = hash_key(key)
        if self._configured is not None and hmac.compare_digest(hashed, self._configured):
            return self._operator
        row = None if self._keys is None else self._keys.check(hashed, self._clock.now())
        if row is None:
            raise _refused()
        return Principal(tenant=row.tenant, scopes=row.scopes, key_id=row.id, quota=row.quota)


def _bearer(authorization: str | None) -> str | None:
    scheme, _, credential = (authorization or "").partition(" ")
    credential = credential.strip()
    if scheme.lower() != "bearer" or not credential.isascii():
        return None
    return credential if 0 < len(credential) <= _MAX_TOKEN else None


def _is_token(credential: str) -> bool:
    """Return whether it has the form of a JSON Web Token. Our keys have no dot."""
    return credential.count(".") == 2


def require(principal: Principal, scope: Scope) -> None:
    if not principal.may(scope):
        raise PolicyDenied(
            f"this key does not have the scope {scope}",
            hint="create one that has it: sandkasten key create --scope " + scope,
            scope=scope,
        )


def _refused() -> Unauthorized:
    return Unauthorized("the request has no valid key", hint="send Authorization: Bearer <key>")
