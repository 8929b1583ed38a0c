"""JSON Web Tokens of an identity provider: the principal that a signed token stands for.

A token is accepted only with the algorithm that belongs to the key that verifies it, so neither
`alg: none` nor a public key used as a shared secret can pass. Issuer, audience and expiry are
always required. Every token that is not accepted raises Unauthorized; only wrong claims of a
verified token are described. Reads no file and no network: the keys come from a `KeySource`.
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Protocol

import jwt

from sandkasten.errors import SandkastenError, Unauthorized
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.access.api_keys import DEFAULT_SCOPES, parse_quota
from sandkasten.model.access.tenancy import SCOPES, Principal, checked_tenant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.access.tenancy import Scope
    from sandkasten_server.api.request.jwt_rules import TokenRules

_MAX_SUBJECT: Final = 100
_DATES: Final = ("exp", "nbf", "iat")
_LATEST: Final = 253_402_300_799
"""The last second of the year 9999."""
# Three parts in base64url without padding; the decoder would accept more.
_FORM: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]*){2}")


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A key and the only algorithm it may be used with."""

    algorithm: str
    key: Any = field(repr=False)
    kid: str | None = None


class KeySource(Protocol):
    """The keys that may verify a token."""

    def current(self) -> Sequence[TokenKey]: ...

    async def refresh(self) -> bool:
        """Read the keys again unless that was done just now; return whether they were read.

        Callers that come during a read share it.
        """
        ...


class TokenVerifier:
    """Turns a token into a principal."""

    def __init__(self, rules: TokenRules, source: KeySource) -> None:
        self._rules = rules
        self._source = source

    def principal(self, token: str) -> Principal:
        """Return the principal of a valid token; Unauthorized for any other."""
        claims = self._verified(token)
        try:
            return Principal(
                tenant=checked_tenant(claims.get(self._rules.tenant_claim)),  # type: ignore[arg-type]
                scopes=_scopes(claims.get(self._rules.scope_claim)),
                key_id=_subject(claims.get("sub")),
                quota=parse_quota(_quota(claims.get(self._rules.quota_claim))),
            )
        except SandkastenError as exc:
            raise Unauthorized(
                f"the token's claims are not valid: {exc.message}",
                hint=f"the operator's settings jwt.* name the claims: "
                f"{self._rules.tenant_claim}, {self._rules.scope_claim}, {self._rules.quota_claim}",
            ) from exc

    async def refresh(self, token: str) -> bool:
        """Read the keys again for a refused token; return whether they were read.

        A token that is refused whatever the keys are, such as an expired one, causes no read.
        """
        if not _FORM.fullmatch(token):
            return False
        try:
            self._decoded(token, None)
        except Unauthorized:
            return False
        return await self._source.refresh()

    def _verified(self, token: str) -> dict[str, Any]:
        if not _FORM.fullmatch(token):
            raise refused()
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, RecursionError) as exc:
            raise refused() from exc
        kid, algorithm = header.get("kid"), header.get("alg")
        for key in self._source.current():
            if key.algorithm != algorithm or (kid and key.kid and key.kid != kid):
                continue
            claims = self._decoded(token, key)
            if claims is not None:
                return claims
        raise refused()

    def _decoded(self, token: str, key: TokenKey | None) -> dict[str, Any] | None:
        """Return the claims; None if the signature is not by `key`. Unauthorized for wrong claims.

        Without a key, the claims are checked and the signature is not.
        """
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                "" if key is None else key.key,
                algorithms=None if key is None else [key.algorithm],
                issuer=self._rules.issuer,
                audience=self._rules.audience,
                leeway=self._rules.leeway_s,
                options={
                    "verify_signature": key is not None,
                    "verify_exp": True,
                    "verify_nbf": True,
                    "verify_iss": True,
                    "verify_aud": True,
                    "require": ["exp", "iss", "aud", "sub"],
                },
            )
        except jwt.InvalidSignatureError:
            return None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as exc:
            raise refused() from exc
        # The library also accepts what Python can convert, such as "1795000000" and true.
        if not all(_is_date(claims[name]) for name in _DATES if name in claims):
            raise refused()
        return claims


def _is_date(claim: object) -> bool:
    """Return whether a claim is a NumericDate of RFC 7519, in a year that has four digits."""
    if isinstance(claim, bool) or not isinstance(claim, int | float):
        return False
    return 0 <= claim <= _LATEST


def refused() -> Unauthorized:
    return Unauthorized(
        "the token is not valid here",
        hint="get a new one; its signature, issuer, audience or expiry does not match this daemon",
    )


def _scopes(claim: object) -> frozenset[Scope]:
    """Return our scopes in the claim. Others, such as `openid`, are ignored."""
    if claim is None:
        return DEFAULT_SCOPES
    names = claim.split(" ") if isinstance(claim, str) else claim
    if not isinstance(names, list):
        raise refused()
    return frozenset(scope for scope in SCOPES if scope in names)


def _quota(claim: object) -> dict[str, Any]:
    if claim is None:
        return {}
    if not isinstance(claim, dict):
        raise refused()
    return claim


def _subject(claim: object) -> str:
    """Return what lists and the audit show for this principal."""
    if not isinstance(claim, str) or not claim.strip():
        raise Unauthorized("sub must be a string that is not empty")
    text = "".join(c if c.isascii() and c.isprintable() else "?" for c in claim)
    return "jwt:" + text[:_MAX_SUBJECT]
