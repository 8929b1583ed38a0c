"""Where a bucket is, and the keys that open it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern
from sandkasten.model.addresses import is_loopback
from sandkasten.settings.setting_fields import masked, setting
from sandkasten.settings.setting_parsers import (
    boolean,
    http_url,
    invalid,
    path,
    positive_integer,
    seconds,
    secret_in,
    service_key,
    string,
)
from sandkasten_cluster_store.store_settings import StoreSettings

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten.ports.backend_plugins import SettingContext

OBJECT_BYTES: Final = 4 * 1024 * 1024
"""Size of an object. A file is stored as several of them; a transfer has one in memory."""
# A file below this size is in memory until it is known to be so small.
_MAX_MIN_BYTES: Final = 4 * 1024 * 1024
_BUCKET: Final = lazy_pattern.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{1,62}")
_PREFIX: Final = lazy_pattern.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]*/)+")
_REGION: Final = lazy_pattern.compile(r"[A-Za-z0-9-]{1,64}")


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
class BucketOptions:
    endpoint: str = setting(
        "store.files.endpoint",
        bucket_endpoint,
        "",
        "S3 server whose bucket has the content of stored files; default: store.url has it.",
    )
    bucket: str = setting("store.files.bucket", bucket_name, "", "The bucket; it must exist.")
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
    access_key: str = setting(
        "store.files.access_key",
        service_key,
        "",
        "The id of the access key.",
        aliases=("AWS_ACCESS_KEY_ID",),
        show=masked,
    )
    secret_key: str = setting(
        "store.files.secret_key",
        service_key,
        "",
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
        service_key,
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

    @property
    def location(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    @property
    def is_local(self) -> bool:
        return is_loopback(urlsplit(self.endpoint).hostname or "")

    @property
    def is_set(self) -> bool:
        return bool(self.endpoint and self.bucket)

    def completed(self, context: SettingContext) -> BucketOptions:
        """Return the bucket with its keys; it requires `store.url`."""
        if not self.endpoint and not self.bucket:
            return self
        if not self.endpoint or not self.bucket:
            missing = "bucket" if self.endpoint else "endpoint"
            raise _incomplete("endpoint and store.files.bucket require each other", missing)
        if context.of(StoreSettings).url is None:
            raise InvalidConfiguration(
                "store.files.bucket requires store.url",
                hint="set store.url to a PostgreSQL database, or leave store.files out: a daemon"
                " without store.url stores files in its data directory",
                setting="store.files.bucket",
            )
        secret_key = self.secret_key
        if not secret_key and self.secret_key_file is not None:
            secret_key = secret_in("store.files.secret_key_file", self.secret_key_file, service_key)
        if not self.access_key or not secret_key:
            missing = "secret_key" if self.access_key else "access_key"
            raise _incomplete("bucket requires access_key and secret_key", missing)
        if urlsplit(self.endpoint).scheme == "http" and not (self.is_local or self.insecure):
            raise InvalidConfiguration(
                "store.files.endpoint names a server on another machine without encryption",
                hint="write an https URL, or set store.files.insecure: true if the network"
                " between them is trusted",
                setting="store.files.endpoint",
            )
        return replace(self, secret_key=secret_key)


def _incomplete(message: str, missing: str) -> InvalidConfiguration:
    name = f"store.files.{missing}"
    variable = name.upper().replace(".", "_")
    return InvalidConfiguration(
        f"store.files.{message}", hint=f"set {name} (SANDKASTEN_{variable})", setting=name
    )
