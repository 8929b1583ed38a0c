"""Who a request comes from, decided before anything of it is looked at.

Keys are compared as hashes, in constant time, and leave no trace: not in a message, not in a
log. Anything but one well-formed living key is Unauthorized, whatever is wrong with it.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

from sandkasten.errors import PolicyDenied, Unauthorized
from sandkasten.model.access.api_keys import hash_key
from sandkasten.model.access.tenancy import Principal, Scope, checked_tenant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.access.tenancy import TenantQuota
    from sandkasten.ports import Clock, Keys

# Far above any key of ours; a longer one is not worth hashing.
_MAX_KEY: Final = 512
_TENANT_HEADER: Final = "x-sandkasten-tenant"
_STRANGER: Final = Principal(tenant="", scopes=frozenset())


class Doorkeeper:
    """`open_loopback`: whoever reaches a loopback address needs no key."""

    def __init__(
        self,
        *,
        clock: Clock,
        keys: Keys | None = None,
        api_key: str | None = None,
        open_loopback: bool = False,
        default_quota: TenantQuota | None = None,
    ) -> None:
        self._clock = clock
        self._keys = keys
        self._configured = None if api_key is None else hash_key(api_key)
        self._open_loopback = open_loopback
        self._operator = Principal() if default_quota is None else Principal(quota=default_quota)

    @property
    def stranger(self) -> Principal:
        """Nobody in particular, who may do nothing in particular."""
        return _STRANGER

    def admit(self, headers: Mapping[str, str], *, local: bool) -> Principal:
        """`local`: came by the Unix socket, whose directory only the operator can enter."""
        principal = self._who(headers.get("authorization"), local=local)
        wanted = headers.get(_TENANT_HEADER)
        if wanted is None or wanted == principal.tenant:
            return principal
        if not principal.may("admin"):
            raise PolicyDenied(
                "this key cannot act as another tenant", hint="it takes a key with scope admin"
            )
        return Principal(
            tenant=checked_tenant(wanted), scopes=principal.scopes, key_id=principal.key_id
        )

    def _is_open(self) -> bool:
        """Once somebody had a key, coming without one means nothing good: a proxy on this machine
        would hand the operator's rights to whoever comes through it. That the last key was
        revoked or ran out changes nothing; the operator has the socket.
        """
        return self._open_loopback and (self._keys is None or not self._keys.any_made())

    def _who(self, authorization: str | None, *, local: bool) -> Principal:
        if authorization is None:
            if local or self._is_open():
                return self._operator
            raise _refused()
        scheme, _, key = authorization.partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not key or len(key) > _MAX_KEY or not key.isascii():
            raise _refused()
        hashed = hash_key(key)
        if self._configured is not None and hmac.compare_digest(hashed, self._configured):
            return self._operator
        row = None if self._keys is None else self._keys.check(hashed, self._clock.now())
        if row is None:
            raise _refused()
        return Principal(tenant=row.tenant, scopes=row.scopes, key_id=row.id, quota=row.quota)


def require(principal: Principal, scope: Scope) -> None:
    if not principal.may(scope):
        raise PolicyDenied(
            f"this key has not the scope {scope}",
            hint="make one that has: sandkasten key create --scope " + scope,
            scope=scope,
        )


def _refused() -> Unauthorized:
    return Unauthorized("the request carries no valid key", hint="send Authorization: Bearer <key>")
