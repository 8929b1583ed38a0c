"""Settings of the database that several daemons share."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import parse_qs, urlsplit

from sandkasten.daemon.settings.setting_fields import setting
from sandkasten.daemon.settings.setting_parsers import positive_integer, seconds
from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass


def postgres_url(name: str, value: object) -> str:
    """Accept the URL of a database. It may contain a password, so no error repeats it."""
    if isinstance(value, str) and value.isprintable() and " " not in value and len(value) <= 4096:
        with suppress(ValueError):
            parts = urlsplit(value)
            in_query = "host" in parse_qs(parts.query)
            if (
                parts.scheme in ("postgresql", "postgres")
                and (parts.hostname or in_query)
                and parts.port != 0
                and len(parts.path) > 1
                # Else a password with a slash, which would be shown as host and path.
                and "@" not in parts.path
                and not parts.fragment
            ):
                return value
    raise InvalidConfiguration(
        f"{name} must be the URL of a PostgreSQL database",
        hint="write postgresql://user@host/database; special characters of a password are"
        " must be percent-encoded, or the password can be in PGPASSWORD",
        setting=name,
    )


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
