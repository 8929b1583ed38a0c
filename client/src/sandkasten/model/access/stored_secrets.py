"""Secrets of a tenant: where a value may go, and how it gets there. Pure except for random numbers.

A sandbox never has a value, only its placeholder. The egress process inserts the value into
requests to the secret's hosts, only over TLS, at the one place that the secret names.
"""

from __future__ import annotations

import secrets
from dataclasses import field
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidRequest, NotFound
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern
from sandkasten.model.json_codec import Timestamp  # noqa: TC001  (read at run time)
from sandkasten.model.sandbox.network_rules import NetworkRule, parse_rule
from sandkasten.model.spelling import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

SECRET_NAME: Final = "[A-Za-z_][A-Za-z0-9_]{0,63}"  # noqa: S105  (a pattern)
MAX_HOSTS: Final = 16
MAX_VALUE: Final = 8192
# A shorter value would be found by chance in answers, where each occurrence is hidden.
MIN_VALUE: Final = 8
MAX_SECRETS: Final = 256
_VALUE_PLACE: Final = "{value}"
_NAME = lazy_pattern.compile(rf"{SECRET_NAME}\Z")
SECRET_VALUE: Final = f"[!-~][ -~]{{{MIN_VALUE - 2},{MAX_VALUE - 2}}}[!-~]"
BASIC_USER: Final = "[!-9;-~]{1,128}"
QUERY_PARAMETER: Final = "[A-Za-z0-9_.~-]{1,64}"
_VALUE = lazy_pattern.compile(rf"{SECRET_VALUE}\Z")
_HEADER = lazy_pattern.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}): ?([ -~]{7,512})\Z")
_USER = lazy_pattern.compile(rf"{BASIC_USER}\Z")
_PARAMETER = lazy_pattern.compile(rf"{QUERY_PARAMETER}\Z")
# These frame a request or name its host: a value has no place in them.
_FRAMING: Final = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "upgrade", "expect", "te"}
)


@dataclass(frozen=True, slots=True)
class SecretRequest:
    """A secret to store. Exactly one of `header`, `basic`, `query` and `body` is given."""

    name: str
    value: str = field(repr=False)
    hosts: Sequence[str] = ()
    header: str | None = None
    """`Authorization: Bearer {value}`: this header is set on every request."""
    basic: str | None = None
    """The user of `Authorization: Basic`, set on every request."""
    query: str | None = None
    """A query parameter, set on every request."""
    body: bool = False
    """The value replaces the placeholder in bodies of requests."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A stored secret without its value."""

    name: str
    hosts: tuple[str, ...]
    placeholder: str
    created_at: Timestamp
    updated_at: Timestamp
    header: str | None = None
    basic: str | None = None
    query: str | None = None
    body: bool = False

    @property
    def place(self) -> str:
        """Return where the value goes, in a few words."""
        if self.header is not None:
            return f"header {self.header.partition(':')[0]}"
        if self.basic is not None:
            return f"basic {self.basic}"
        return "body" if self.query is None else f"query {self.query}"


@dataclass(frozen=True, slots=True)
class OpenSecret:
    """A secret with its value, on its way to the egress process of a sandbox."""

    secret: Secret
    value: str = field(repr=False)


def checked_secret(request: SecretRequest) -> SecretRequest:
    """Return the request in its stored form; InvalidRequest names what is wrong."""
    checked_secret_name(request.name)
    if not isinstance(request.value, str) or not _VALUE.match(request.value):
        # Never with the value itself.
        raise _invalid(
            f"the value of secret {request.name} must have {MIN_VALUE} to {MAX_VALUE} printable "
            "ASCII characters, without spaces at its ends",
            "check that no line break was added",
            "value",
        )
    if not 1 <= len(request.hosts) <= MAX_HOSTS:
        raise _invalid(
            f"a secret requires 1 to {MAX_HOSTS} hosts", "add --host api.example.com", "hosts"
        )
    hosts = tuple(dict.fromkeys(_host(host).text for host in request.hosts))
    places = [request.header, request.basic, request.query, request.body or None]
    if sum(place is not None for place in places) != 1:
        raise _invalid(
            "a secret requires exactly one of header, basic, query and body",
            "for example --header 'Authorization: Bearer {value}'",
            "header",
        )
    _check_place(request)
    return SecretRequest(
        request.name,
        request.value,
        hosts,
        request.header,
        request.basic,
        request.query,
        request.body,
    )


def _check_place(request: SecretRequest) -> None:
    if request.header is not None:
        match = _HEADER.match(request.header)
        if match is None or match[2].count(_VALUE_PLACE) != 1:
            raise _invalid(
                f"{shown(request.header)} is not a valid header with {_VALUE_PLACE}",
                "write 'Authorization: Bearer {value}'",
                "header",
            )
        if match[1].lower() in _FRAMING:
            raise _invalid(
                f"a secret cannot be in the header {match[1]}", "use another header", "header"
            )
    if request.basic is not None and not _USER.match(request.basic):
        raise _invalid(
            f"{shown(request.basic)} is not a valid user",
            "up to 128 printable characters without spaces and colons",
            "basic",
        )
    if request.query is not None and not _PARAMETER.match(request.query):
        raise _invalid(
            f"{shown(request.query)} is not a valid query parameter",
            "up to 64 of letters, digits and _.~-",
            "query",
        )


def _host(text: str) -> NetworkRule:
    rule = parse_rule(text)
    if rule.host is None or rule.method is not None or rule.path is not None:
        raise _invalid(
            f"{shown(text)} is not a host", "write api.example.com or api.example.com:443", "hosts"
        )
    return rule


def checked_secret_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.match(name):
        raise _invalid(
            f"{shown(str(name))} is not a valid name for a secret",
            "1 to 64 letters, digits and underscores, as for an environment variable",
            "name",
        )
    return name


def is_secret_name(name: str) -> bool:
    return _NAME.match(name) is not None


def make_placeholder(name: str) -> str:
    """Return what a sandbox sees. It has no character that an encoding changes."""
    return f"sandkasten_{name}_{secrets.token_hex(8)}"


def no_such_secret(name: str) -> NotFound:
    return NotFound(f"there is no secret {shown(name)}", hint="list them: sandkasten secret ls")


def _invalid(message: str, hint: str, field: str) -> InvalidRequest:
    return InvalidRequest(message, hint=hint, field=field)
