"""Where a bucket is, and the keys that open it."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path  # noqa: TC003  (a field of a dataclass)
from typing import Final
from urllib.parse import urlsplit

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.addresses import is_loopback

OBJECT_BYTES: Final = 4 * 1024 * 1024
"""Size of an object. A file is stored as several of them; a transfer has one in memory."""


@dataclass(frozen=True, slots=True)
class BucketOptions:
    endpoint: str
    """Scheme, host and port, without a path."""
    bucket: str
    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    prefix: str = ""
    """How the names of all objects begin: empty, or with a slash at its end."""
    region: str = "us-east-1"
    path_style: bool = True
    """Whether the bucket is in the path of a URL, and not in its host name."""
    ca_file: Path | None = None
    min_bytes: int = 262_144
    """Smaller files stay in the database."""
    timeout_s: float = 30.0

    @property
    def location(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    @property
    def is_local(self) -> bool:
        return is_loopback(urlsplit(self.endpoint).hostname or "")
