"""Limits of HTTP requests: maximum body and upload sizes, deadlines, allowed hosts and origins."""

from __future__ import annotations

from typing import Final, Literal

from sandkasten.lazy_dataclass import dataclass
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import choice, positive_number, seconds, string_list

MIB: Final = 1 << 20
MAX_JSON_MB: Final = 16
"""Default limit of a JSON body: a file of 10 MB in base64, with some room."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The operator's limits for requests: sizes, deadlines, hosts and origins."""

    allowed_hosts: tuple[str, ...] = setting(
        "http.allowed_hosts",
        string_list,
        (),
        "Host names of the daemon besides its address; '*': any.",
    )
    allowed_origins: tuple[str, ...] = setting(
        "http.allowed_origins", string_list, (), "Origins of web pages that may use the daemon."
    )
    max_json_mb: float = setting(
        "http.max_json_mb", positive_number, MAX_JSON_MB, "Largest JSON body."
    )
    body_timeout_s: float = setting(
        "http.body_timeout_seconds", seconds, 8.0, "How long a client may pause within a JSON body."
    )
    """It holds between two pieces of a body, and for all of it beyond what its size allows."""
    upload_timeout_s: float = setting(
        "http.upload_timeout_seconds",
        seconds,
        60.0,
        "How long a client may pause within a streamed upload.",
    )
    """It holds between two pieces; ten times that in all, beyond the size of the body."""
    metrics: Literal["key", "open"] = setting(
        "telemetry.metrics",
        choice("key", "open"),
        "key",
        "Whether /metrics requires a key with scope metrics (key) or none (open).",
    )
    max_upload_bytes: int = 10 << 30
    """Maximum size of a streamed body; the sandbox's quota usually ends it earlier."""
    header_timeout_s: float = 8.0
    """Deadline from the connection, or the first byte of a request, to the end of its headers."""
    write_timeout_s: float = 60.0
    """How long a client that reads a response may take nothing of it."""
    max_header_bytes: int = 32 * 1024
    max_headers: int = 100

    @property
    def max_json_bytes(self) -> int:
        return int(self.max_json_mb * MIB)

    @property
    def metrics_open(self) -> bool:
        return self.metrics == "open"
