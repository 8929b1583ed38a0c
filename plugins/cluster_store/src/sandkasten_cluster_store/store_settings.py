"""Settings of the database that several daemons share."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import (
    positive_integer,
    seconds,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from urllib.parse import SplitResult


# ---- the database


def postgres_url(name: str, value: object) -> str:
    """Accept the URL of a database. It may contain a password, so no error repeats it."""
    if isinstance(value, str) and value.isprintable() and " " not in value and len(value) <= 4096:
        with suppress(ValueError):
            parts = urlsplit(value)
            query = parse_qs(parts.query)
            if (
                parts.scheme in ("postgresql", "postgres")
                and (parts.hostname or "host" in query)
                and parts.port != 0
                and len(parts.path) > 1
                # Else a password with a slash, which would be shown as host and path.
                and "@" not in parts.path
                and not parts.fragment
            ):
                _check_tls(name, parts, query)
                return value
    raise InvalidConfiguration(
        f"{name} must be the URL of a PostgreSQL database",
        hint="write postgresql://user@host/database; special characters of a password"
        " must be percent-encoded, or the password can be in PGPASSWORD",
        setting=name,
    )


def _check_tls(name: str, parts: SplitResult, query: Mapping[str, Sequence[str]]) -> None:
    """Raise InvalidConfiguration if a server on another machine is named without `sslmode`: the
    driver would accept any server, and a connection without encryption.
    """
    hosts = unquote(parts.hostname or query["host"][-1]).split(",")
    if "sslmode" in query or all(map(_is_local, hosts)):
        return
    raise InvalidConfiguration(
        f"{name} names a server on another machine and does not say how to check it",
        hint="add ?sslmode=verify-full&sslrootcert=FILE to it; sslmode=require encrypts and does"
        " not check the server, sslmode=disable does neither",
        setting=name,
    )


def _is_local(host: str) -> bool:
    """Return whether a host is a socket in the file system or the loopback."""
    if host.startswith("/") or host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return False


def without_password(url: str) -> str:
    """Return scheme, user, host and database of a URL; the query may contain a password too."""
    parts = urlsplit(url)
    login, _, place = parts.netloc.rpartition("@")
    user = login.partition(":")[0]
    return f"{parts.scheme}://{user + '@' if user else ''}{place}{parts.path}"


@dataclass(frozen=True, slots=True)
class StoreSettings:
    url: str | None = setting(
        "store.url",
        postgres_url,
        None,
        "PostgreSQL database for records that several daemons share; default: local files.",
        show=without_password,
    )
    max_connections: int = setting(
        "store.max_connections",
        positive_integer,
        10,
        "Most connections of one daemon to store.url; one more is for locks and notifications.",
    )
    timeout_s: float = setting(
        "store.timeout_seconds",
        seconds,
        10.0,
        "How long a statement or a new connection to store.url may take.",
    )
