"""Settings of what several daemons share: the database, and the bucket for large stored files."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, unquote, urlsplit

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern
from sandkasten.settings.setting_fields import masked, setting
from sandkasten.settings.setting_parsers import (
    boolean,
    http_url,
    invalid,
    model_key,
    path,
    positive_integer,
    seconds,
    secret_in,
    string,
)
from sandkasten.store.bucket.bucket_options import BucketOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from urllib.parse import SplitResult

# A file below this size is in memory until it is known to be so small.
_MAX_MIN_BYTES: Final = 4 * 1024 * 1024
_BUCKET: Final = lazy_pattern.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{1,62}")
_PREFIX: Final = lazy_pattern.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]*/)+")
_REGION: Final = lazy_pattern.compile(r"[A-Za-z0-9-]{1,64}")


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


# ---- the bucket


def bucket_endpoint(name: str, value: object) -> str:
    """Accept the address of a server, without the bucket and without credentials."""
    example = "https://s3.eu-central-1.amazonaws.com"
    url, parts = http_url(name, value, "the http(s) URL of an S3 server", example)
    login = parts.username or parts.password
    if login or parts.query or parts.fragment or parts.path.strip("/"):
        raise InvalidConfiguration(
            f"{name} must have a host and a port only",
            hint=f"write {example}; the bucket is store.files.bucket, and the keys are"
            " store.files.access_key and store.files.secret_key",
            setting=name,
        )
    return url.rstrip("/")


def bucket_name(name: str, value: object) -> str:
    if not _BUCKET.fullmatch(string(name, value)):
        raise invalid(name, "the name of a bucket", value, "write 3 to 63 letters and digits")
    return str(value)


def object_prefix(name: str, value: object) -> str:
    """Accept directories, with or without a slash at the end."""
    prefix = f"{string(name, value)}".rstrip("/") + "/"
    if len(prefix) > 256 or not _PREFIX.fullmatch(prefix):
        hint = "write sandkasten or team/sandkasten: letters, digits, dots, - and _"
        raise invalid(name, "the beginning of object names", value, hint)
    return prefix


def region_name(name: str, value: object) -> str:
    if not _REGION.fullmatch(string(name, value)):
        raise invalid(name, "the name of a region", value, "write eu-central-1")
    return str(value)


def small_size(name: str, value: object) -> int:
    size = positive_integer(name, value)
    if size > _MAX_MIN_BYTES:
        raise invalid(name, f"at most {_MAX_MIN_BYTES}", value, "write a number such as 262144")
    return size


@dataclass(frozen=True, slots=True)
class BucketSettings:
    endpoint: str | None = setting(
        "store.files.endpoint",
        bucket_endpoint,
        None,
        "S3 server whose bucket has the content of stored files; default: store.url has it.",
    )
    bucket: str | None = setting(
        "store.files.bucket", bucket_name, None, "The bucket; it must exist."
    )
    prefix: str = setting(
        "store.files.prefix", object_prefix, "sandkasten/", "How the names of all objects begin."
    )
    region: str = setting(
        "store.files.region", region_name, "us-east-1", "The region of the bucket."
    )
    path_style: bool = setting(
        "store.files.path_style",
        boolean,
        True,
        "Whether the bucket is in the path of a URL, and not in its host name.",
    )
    access_key: str | None = setting(
        "store.files.access_key",
        model_key,
        None,
        "The id of the access key.",
        aliases=("AWS_ACCESS_KEY_ID",),
        show=masked,
    )
    secret_key: str | None = setting(
        "store.files.secret_key",
        model_key,
        None,
        "The secret access key. Better in a file or a variable than here.",
        aliases=("AWS_SECRET_ACCESS_KEY",),
        show=masked,
    )
    secret_key_file: Path | None = setting(
        "store.files.secret_key_file",
        path,
        None,
        "A file that holds the secret access key, readable only by the daemon's user.",
    )
    session_token: str | None = setting(
        "store.files.session_token",
        model_key,
        None,
        "The token of temporary keys, which the daemon does not renew.",
        aliases=("AWS_SESSION_TOKEN",),
        show=masked,
    )
    ca_file: Path | None = setting(
        "store.files.ca_file",
        path,
        None,
        "The authority of the server's certificate, in PEM; default: those of this machine.",
    )
    insecure: bool = setting(
        "store.files.insecure",
        boolean,
        False,
        "Whether plain http to another machine is allowed.",
    )
    min_bytes: int = setting(
        "store.files.min_bytes",
        small_size,
        262_144,
        "Files up to this size stay in store.url.",
    )
    timeout_s: float = setting(
        "store.files.timeout_seconds",
        seconds,
        30.0,
        "How long one request to the bucket may take.",
    )

    def options(self, store: StoreSettings) -> BucketOptions | None:
        """Return the bucket with its keys, None if there is none."""
        if self.endpoint is None and self.bucket is None:
            return None
        if self.endpoint is None or self.bucket is None:
            missing = "endpoint" if self.endpoint is None else "bucket"
            raise _incomplete("endpoint and store.files.bucket require each other", missing)
        if store.url is None:
            raise InvalidConfiguration(
                "store.files.bucket requires store.url",
                hint="set store.url to a PostgreSQL database, or leave store.files out: a daemon"
                " without store.url stores files in its data directory",
                setting="store.files.bucket",
            )
        secret_key = self.secret_key
        if secret_key is None and self.secret_key_file is not None:
            secret_key = secret_in("store.files.secret_key_file", self.secret_key_file, model_key)
        if self.access_key is None or secret_key is None:
            missing = "access_key" if self.access_key is None else "secret_key"
            raise _incomplete("bucket requires access_key and secret_key", missing)
        found = BucketOptions(
            endpoint=self.endpoint,
            bucket=self.bucket,
            access_key=self.access_key,
            secret_key=secret_key,
            session_token=self.session_token,
            prefix=self.prefix,
            region=self.region,
            path_style=self.path_style,
            ca_file=self.ca_file,
            min_bytes=self.min_bytes,
            timeout_s=self.timeout_s,
        )
        if urlsplit(self.endpoint).scheme == "http" and not (found.is_local or self.insecure):
            raise InvalidConfiguration(
                "store.files.endpoint names a server on another machine without encryption",
                hint="write an https URL, or set store.files.insecure: true if the network"
                " between them is trusted",
                setting="store.files.endpoint",
            )
        return found


def _incomplete(message: str, missing: str) -> InvalidConfiguration:
    name = f"store.files.{missing}"
    variable = name.upper().replace(".", "_")
    return InvalidConfiguration(
        f"store.files.{message}", hint=f"set {name} (SANDKASTEN_{variable})", setting=name
    )
