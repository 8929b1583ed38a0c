"""The operator's rules for records: how long and how much of them is kept."""

from __future__ import annotations

from typing import Final

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.limits import MIB
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import boolean, positive_integer, seconds

_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Retention:
    """How long ended things are remembered."""

    sessions_s: float = setting(
        "retention.sessions_seconds",
        seconds,
        7 * _DAY_S,
        "How long ended sessions are kept in the journal.",
    )
    execs_s: float = setting(
        "retention.execs_seconds",
        seconds,
        7 * _DAY_S,
        "How long commands of ended sessions are kept in the journal.",
    )
    audit_s: float = setting(
        "retention.audit_seconds",
        seconds,
        90 * _DAY_S,
        "How long records of the audit log are kept.",
    )
    audit_bytes: int = setting(
        "retention.audit_bytes",
        positive_integer,
        1 << 30,
        "How many bytes the audit log may take; its oldest records are removed first.",
    )


@dataclass(frozen=True, slots=True)
class RecordingRules:
    """Which output is recorded, and how much of it."""

    enabled: bool = setting(
        "recording.enabled",
        boolean,
        False,
        "Whether output of commands and terminals is recorded for `sandkasten replay`.",
    )
    max_bytes: int = setting(
        "recording.max_bytes",
        positive_integer,
        4 << 20,
        "Largest recording of one command or terminal.",
    )
    max_total_bytes: int = setting(
        "recording.max_total_bytes",
        positive_integer,
        1 << 30,
        "How many bytes all recordings may take; those of the oldest sessions are removed first.",
    )


@dataclass(frozen=True, slots=True)
class FileRules:
    """The size of the file store. What a tenant may have in all also bounds one file."""

    max_bytes: int = setting(
        "files.max_bytes",
        positive_integer,
        10 * 1024 * MIB,
        "Largest file of the file store.",
    )
    max_total_bytes: int = setting(
        "files.max_total_bytes",
        positive_integer,
        10 * 1024 * MIB,
        "How many bytes of stored files one tenant may have.",
    )
    ttl_s: float | None = setting(
        "files.ttl_seconds",
        seconds,
        None,
        "When a stored file is deleted; default: only on request.",
    )
