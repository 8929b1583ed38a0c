"""Audit records: what was done, by which key, with what result and resource use. Values only.

`kind` groups them: `change` (made through the daemon), `exec`, `file`, `network`, `policy`, `key`,
`session` (an end) and `audit` (the log itself).
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  (the codec reads the annotations)
from dataclasses import field
from types import MappingProxyType
from typing import Final, Literal

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.json_codec import Timestamp  # noqa: TC001

KINDS: Final = ("change", "exec", "file", "network", "policy", "key", "session", "audit")


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One record. The log assigns `seq`, `prev` and `hash`."""

    seq: int
    at: Timestamp
    tenant: str
    key_id: str | None
    action: str
    """`session.create`, `exec.start`, `network.refuse`, …"""
    target: str
    outcome: str
    """ok, or the code of the error; for `exec.end` and `session.end` the status."""
    request_id: str = ""
    detail: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    kind: str = "change"
    session_id: str | None = None
    usage: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Resource use of a command: `cpu_ms`, `peak_memory_bytes`, `duration_ms`, …"""
    prev: str = ""
    """The hash of the record before; 64 zeros for the first one."""
    hash: str = ""
    """The SHA-256 of this record in canonical JSON without this field."""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which records to read; None matches all."""

    tenant: str | None = None
    kind: str | None = None
    action: str | None = None
    target: str | None = None
    session_id: str | None = None
    key_id: str | None = None
    since: float | None = None
    """Only records at or after this time, in Unix seconds."""
    since_seq: int = 0
    limit: int = 1000
    newest: bool = False
    """The last `limit` records instead of the first; oldest first in either case."""

    def matches(self, row: AuditRow) -> bool:
        return (
            row.seq > self.since_seq
            and (self.since is None or row.at >= self.since)
            and self.tenant in (None, row.tenant)
            and self.kind in (None, row.kind)
            and self.action in (None, row.action)
            and self.target in (None, row.target)
            and self.session_id in (None, row.session_id)
            and self.key_id in (None, row.key_id)
        )


@dataclass(frozen=True, slots=True)
class AuditHead:
    """The newest record of the log. Kept elsewhere, it proves that the end is not missing."""

    seq: int
    hash: str


FlawKind = Literal["changed", "missing", "reordered", "incomplete", "truncated"]


@dataclass(frozen=True, slots=True)
class AuditFlaw:
    """The first record that is not as it was written."""

    seq: int
    """The number of the record; of the first one that is missing."""
    flaw: FlawKind
    message: str
    place: str = ""
    """File and line, where the record is in a file."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of a check of the whole log."""

    ok: bool
    records: int
    first_seq: int
    last_seq: int
    head: str
    """The hash of the last record that is right."""
    flaw: AuditFlaw | None = None
