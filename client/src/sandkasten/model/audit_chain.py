"""The hash chain of the audit log: the form of a record as a line, and the check of lines. Pure.

A line is the record as canonical JSON (sorted keys, no spaces, ASCII) with its hash as the last
member. The hash is the SHA-256 of that JSON without the hash; the record holds the hash of the one
before. So a record cannot be changed, removed, moved or inserted without changing every later one,
and the hash of the last one, kept elsewhere, proves all of them.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from sandkasten.model import lazy_pattern
from sandkasten.model.audit_records import AuditFlaw, AuditHead, AuditReport, AuditRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sandkasten.model.audit_records import FlawKind

GENESIS: Final = "0" * 64
CUT: Final = "audit.cut"
"""The action of a record that lists the records that the retention has removed."""
LINE_BEGIN: Final = b'{"action":"'
# Far more than a record has; what a changed file contains must not fill the memory.
MAX_LINE_BYTES: Final = 1 << 20
_TAIL = lazy_pattern.compile(rb',"hash":"([0-9a-f]{64})"}\n\Z')
_TAIL_BYTES: Final = len(',"hash":""}\n') + 64
_text: Final = json.encoder.encode_basestring_ascii


def record_line(row: AuditRow, head: AuditHead) -> tuple[bytes, AuditHead]:
    """Return the line of a record that follows `head`, and the new head."""
    seq = head.seq + 1
    # As json.dumps with sorted keys writes it, in a third of the time: commands wait for it.
    body = (
        f'{{"action":{_text(row.action)},"at":{round(row.at, 6)!r},'
        f'"detail":{_object(row.detail)},"key_id":{_maybe(row.key_id)},'
        f'"kind":{_text(row.kind)},"outcome":{_text(row.outcome)},"prev":"{head.hash}",'
        f'"request_id":{_text(row.request_id)},"seq":{seq},'
        f'"session_id":{_maybe(row.session_id)},"target":{_text(row.target)},'
        f'"tenant":{_text(row.tenant)},"usage":{_object(row.usage)}}}'
    )
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f'{body[:-1]},"hash":"{digest}"}}\n'.encode(), AuditHead(seq, digest)


def _maybe(value: str | None) -> str:
    return "null" if value is None else _text(value)


def _object(value: Mapping[str, Any]) -> str:
    if not value:
        return "{}"
    members = (
        f"{_text(name)}:{_text(item) if isinstance(item, str) else int(item)}"
        for name, item in sorted(value.items())
    )
    return "{" + ",".join(members) + "}"


def row_of_line(line: bytes) -> AuditRow:
    """Return the record of a line. Raise ValueError if it is not one, or its hash is wrong."""
    match = _TAIL.search(line[-_TAIL_BYTES:])
    if match is None:
        raise ValueError("the line is not a complete record")
    body = line[: -len(match[0])] + b"}"
    hashed = match[1].decode()
    if hashlib.sha256(body).hexdigest() != hashed:
        raise ValueError("the record does not have its hash")
    try:
        fields: dict[str, Any] = json.loads(body)
        row = AuditRow(**{**fields, "hash": hashed})
    except (TypeError, RecursionError) as exc:
        raise ValueError("the record has other fields") from exc
    typed = isinstance(row.at, int | float) and isinstance(row.detail, dict)
    if type(row.seq) is not int or not typed:
        raise ValueError("the record has fields of other types")
    return row


class ChainCheck:
    """Check lines in order. `add` returns False at the first flaw; `report` ends the check."""

    def __init__(self, heads: Iterable[AuditHead] = ()) -> None:
        """`heads` were kept outside the lines, and must be among them."""
        self._heads: dict[int, set[str]] = {}
        for head in heads:
            if head.seq > 0:
                self._heads.setdefault(head.seq, set()).add(head.hash)
        self._first: AuditRow | None = None
        self._last = AuditHead(0, GENESIS)
        self._cuts: set[tuple[str, str]] = set()
        self._records = 0
        self._flaw: AuditFlaw | None = None

    def add(self, line: bytes, place: str = "") -> bool:
        last = self._last
        expected = last.seq + 1
        if not line.endswith(b"\n"):
            return self._fails(expected, "incomplete", f"record {expected} is incomplete", place)
        try:
            row = row_of_line(line)
        except ValueError as exc:
            return self._fails(expected, "changed", f"record {expected} was changed: {exc}", place)
        if self._first is None:
            self._first, last = row, AuditHead(row.seq - 1, row.prev)
        elif row.seq > expected:
            missing = (
                f"record {expected} is"
                if row.seq == expected + 1
                else (f"records {expected} to {row.seq - 1} are")
            )
            return self._fails(expected, "missing", f"{missing} missing", place)
        elif row.seq < expected:
            message = f"record {row.seq} follows record {last.seq}"
            return self._fails(row.seq, "reordered", message, place)
        if row.prev != last.hash:
            message = f"record {row.seq} does not follow record {last.seq} as it is now"
            return self._fails(row.seq, "changed", message, place)
        if self._heads.get(row.seq, {row.hash}) != {row.hash}:
            message = f"record {row.seq} is not the one whose hash was kept"
            return self._fails(row.seq, "changed", message, place)
        if row.action == CUT:
            self._cuts.add((str(row.detail.get("through_seq")), str(row.detail.get("hash"))))
        self._last = AuditHead(row.seq, row.hash)
        self._records += 1
        return True

    def report(self) -> AuditReport:
        first = self._first
        if self._flaw is None and first is not None and first.seq != 1:
            before = (str(first.seq - 1), first.prev)
            if before not in self._cuts:
                message = (
                    f"the records before {first.seq} are missing, and retention did not remove them"
                )
                self._fails(first.seq, "missing", message, "")
        if self._flaw is None and first is not None and first.seq == 1 and first.prev != GENESIS:
            self._fails(1, "changed", "record 1 names a record before it", "")
        newest = max(self._heads, default=0)
        if self._flaw is None and newest > self._last.seq:
            first_missing = self._last.seq + 1
            message = f"the end is missing: records {first_missing} to {newest} were written"
            self._fails(first_missing, "truncated", message, "")
        return AuditReport(
            ok=self._flaw is None,
            records=self._records,
            first_seq=0 if first is None else first.seq,
            last_seq=self._last.seq,
            head=self._last.hash,
            flaw=self._flaw,
        )

    def _fails(self, seq: int, flaw: FlawKind, message: str, place: str) -> bool:
        self._flaw = AuditFlaw(seq, flaw, message, place)
        return False


def check_lines(lines: Sequence[bytes], heads: Iterable[AuditHead] = ()) -> AuditReport:
    """Check exported lines."""
    check = ChainCheck(heads)
    for number, line in enumerate(lines, 1):
        if not check.add(line, f"line {number}"):
            break
    return check.report()
