"""Limits of HTTP requests: maximum body and upload sizes, deadlines, allowed hosts and origins."""

from __future__ import annotations

from typing import Final

from sandkasten.lazy_dataclass import dataclass

MIB: Final = 1 << 20
MAX_JSON_MB: Final = 16
"""Default limit of a JSON body: a file of 10 MB in base64, with some room."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The operator's limits for requests: sizes, deadlines, hosts and origins."""

    allowed_hosts: tuple[str, ...] = ()
    """Host names, besides loopback, that a `Host` header may name; `*`: any."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may send requests; none by default."""
    max_json_bytes: int = MAX_JSON_MB * MIB
    """Maximum size of a JSON body."""
    max_upload_bytes: int = 10 << 30
    """Maximum size of a streamed body; the sandbox's quota usually ends it earlier."""
    body_timeout_s: float = 8.0
    """Deadline between two pieces of a JSON body, and for all of it beyond what its size allows."""
    upload_timeout_s: float = 60.0
    """Deadline between two pieces of a streamed body; ten times that in all, beyond its size."""
    header_timeout_s: float = 8.0
    """Deadline from the connection, or the first byte of a request, to the end of its headers."""
    write_timeout_s: float = 60.0
    """How long a client that reads a response may take nothing of it."""
    max_header_bytes: int = 32 * 1024
    max_headers: int = 100
    metrics_open: bool = False
    """Serve `/metrics` without a key; otherwise it requires the scope `metrics`."""
