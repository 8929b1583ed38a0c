"""API keys: creation, parsing and restrictions. Pure except for random numbers.

A key is `sk-<id>-<secret>`. The id is public and names the key in lists and in the audit; the
secret has 256 bits and is shown once. Only the sha256 of the whole key is stored: with that many
random bits a slow hash would protect nothing more.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import field, fields
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidRequest, NotFound
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.access.tenancy import SCOPES, Scope, TenantQuota, checked_tenant
from sandkasten.model.field_patterns import KEY_ID, PRINTABLE, form
from sandkasten.model.journal_rows import KeyRow
from sandkasten.model.numbers import number, whole
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# What running agents requires. Images are shared by all tenants, so changing them is not included.
DEFAULT_SCOPES: Final[frozenset[Scope]] = frozenset({"sessions", "files", "workspaces"})
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
_KEY = re.compile(r"sk-([0-9a-f]{12})-[A-Za-z0-9_-]{43}\Z")
_E2B: Final = "e2b_"
_KEY_ID = form(KEY_ID)
MAX_KEY_NAME: Final = 100
_NAME = form(f"{PRINTABLE}{{0,{MAX_KEY_NAME}}}")
_MOST: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class NewKey:
    id: str
    text: str = field(repr=False)
    """Shown to the caller once, and then forgotten."""
    hashed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """The properties of a new key."""

    tenant: str | None = None
    """Whose it is; the asker's when None."""
    name: str = ""
    scopes: Sequence[str] | None = None
    expires_in_s: float | None = None
    quota: Mapping[str, int | float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MadeKey:
    row: KeyRow
    text: str = field(repr=False)
    """Shown once."""


def new_row(request: KeyRequest, key: NewKey, now: float, tenant: str) -> KeyRow:
    """Return the row to store for a key; InvalidRequest if the request is invalid."""
    ends = request.expires_in_s
    if ends is not None:
        ends = now + number("expires_in_seconds", ends, low=0.001, high=1e10)
    return KeyRow(
        id=key.id,
        tenant=checked_tenant(tenant if request.tenant is None else request.tenant),
        name=checked_key_name(request.name),
        scopes=DEFAULT_SCOPES if request.scopes is None else parse_scopes(request.scopes),
        created_at=now,
        quota=parse_quota(request.quota),
        expires_at=ends,
    )


def make_key() -> NewKey:
    public = secrets.token_hex(_ID_BYTES)
    text = f"sk-{public}-{secrets.token_urlsafe(_SECRET_BYTES)}"
    return NewKey(id=f"key_{public}", text=text, hashed=hash_key(text))


def hash_key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def e2b_spelling(text: str) -> str:
    """Return a key as clients of E2B accept one: `e2b_` and hexadecimal digits."""
    return _E2B + text.encode("utf-8", "surrogatepass").hex()


def key_of_e2b(text: str) -> str:
    """Return the key that a client of E2B spelled; the text itself if it is no such spelling."""
    try:
        return bytes.fromhex(text.removeprefix(_E2B)).decode() if text.startswith(_E2B) else text
    except ValueError:
        return text


def id_of_key(text: str) -> str | None:
    """Return the id that a key contains, without checking that the key exists."""
    match = _KEY.match(text)
    return None if match is None else f"key_{match[1]}"


def is_key_id(text: str) -> bool:
    return _KEY_ID.match(text) is not None


def no_such_key() -> NotFound:
    return NotFound("no key has that id", hint="list them: sandkasten key ls")


def parse_scopes(names: Iterable[str]) -> frozenset[Scope]:
    """Return at least one scope; InvalidRequest names the first unknown one."""
    scopes: set[Scope] = set()
    for name in names:
        matching: list[Scope] = [scope for scope in SCOPES if scope == name]
        if not matching:
            raise InvalidRequest(
                f"{shown(name)} is not a valid scope",
                hint=did_you_mean(name, SCOPES),
                field="scopes",
            )
        scopes.update(matching)
    if not scopes:
        raise InvalidRequest(
            "a key requires at least one scope",
            hint="known: " + ", ".join(sorted(SCOPES)),
            field="scopes",
        )
    return frozenset(scopes)


def parse_quota(limits: Mapping[str, int | float | None]) -> TenantQuota:
    """Return a quota from the field names of TenantQuota; None or absent means unlimited."""
    names = [attribute.name for attribute in fields(TenantQuota)]
    for name in limits:
        if name not in names:
            raise InvalidRequest(
                f"{shown(name)} is not a valid quota", hint=did_you_mean(name, names), field="quota"
            )
    counts = {
        name: whole(f"quota.{name}", value, low=0, high=_MOST)
        for name, value in limits.items()
        if value is not None and name != "requests_per_second"
    }
    rate = limits.get("requests_per_second")
    return TenantQuota(
        **counts,
        requests_per_second=None
        if rate is None
        else number("quota.requests_per_second", rate, low=0.001, high=1e6),
    )


def checked_key_name(text: str) -> str:
    """Return a key's name: short, and without characters that a terminal acts on."""
    if not _NAME.match(text):
        raise InvalidRequest(
            f"{shown(text)} is not a valid name for a key",
            hint=f"at most {MAX_KEY_NAME} printable characters",
            field="name",
        )
    return text
