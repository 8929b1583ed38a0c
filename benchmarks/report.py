"""Turns measurements into a table for people and a document for programs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.thresholds import (
    ADDED,
    FLAT_BYTES,
    IDLE_BYTES,
    MIB,
    NETWORKED_BYTES,
    OURS,
    RATIOS,
    WITHIN,
    Verdict,
    at_most,
    judge,
    judge_added,
    judge_within,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.footprint import Idle
    from benchmarks.load import Rates
    from benchmarks.samples import Samples


@dataclass(slots=True)
class Findings:
    samples: Samples
    rates: Rates = field(default_factory=dict)
    idle: list[Idle] = field(default_factory=list)
    networked: float | None = None
    """Bytes of a sandbox with a network, by its cgroup."""
    growth: dict[str, int] = field(default_factory=dict)
    output_bytes: int = 0
    absent: tuple[str, ...] = ()
    seconds: float = 0.0


def verdicts(found: Findings) -> list[Verdict]:
    ours = next((idle for idle in found.idle if idle.peer == OURS), None)
    grown = max(found.growth.values()) if found.growth else None
    return [
        *(judge(ratio, found.samples) for ratio in RATIOS),
        *(judge_added(added, found.samples) for added in ADDED),
        *(judge_within(within, found.samples) for within in WITHIN),
        at_most("an idle session <= 2 MB", ours.by_available if ours else None, IDLE_BYTES),
        at_most("a sandbox with a network <= 4 MB", found.networked, NETWORKED_BYTES),
        at_most(
            f"embedding process flat under {found.output_bytes / 1e9:.1f} GB of output",
            grown,
            FLAT_BYTES,
        ),
    ]


def table(found: Findings) -> str:
    rows = [("operation", "peer", "n", "p50 ms", "p95 ms", "of ours")]
    for operation in found.samples.operations():
        mine = found.samples.p50(operation, OURS)
        for peer in sorted(found.samples.peers(operation), key=lambda p: (p != OURS, p)):
            p50, p95 = found.samples.p50(operation, peer), found.samples.p95(operation, peer)
            assert p50 is not None
            assert p95 is not None
            count = str(found.samples.count(operation, peer))
            times = f"{p50 / mine:.2f} x" if mine else ""
            rows.append((operation, peer, count, f"{p50:.2f}", f"{p95:.2f}", times))
    for label, by_peer in found.rates.items():
        mine = by_peer.get(OURS)
        for peer, rate in by_peer.items():
            times = f"{rate / mine:.3f} x" if mine else ""
            rows.append((label, peer, "", f"{rate:.1f}/s", "", times))
    for idle in found.idle:
        counted = f"{idle.by_cgroup / MIB:.2f} MiB" if idle.by_cgroup is not None else ""
        whole = f"{idle.by_available / MIB:.2f} MiB"
        rows.append(
            ("idle session (machine / cgroup)", idle.peer, str(idle.sessions), whole, counted, "")
        )
    if found.networked is not None:
        memory = f"{found.networked / MIB:.2f} MiB"
        rows.append(("a sandbox with a network (cgroup)", OURS, "1", memory, "", ""))
    for how, grown in found.growth.items():
        label = f"growth, {found.output_bytes / 1e9:.1f} GB of output"
        rows.append((label, f"{OURS} {how}", "", f"{grown / MIB:.2f} MiB", "", ""))
    return _aligned(rows)


def judgement(found: Findings) -> str:
    words = {True: "pass", False: "FAIL", None: "----"}
    return _aligned([(words[v.ok], v.what, v.measured) for v in verdicts(found)])


def document(found: Findings) -> dict[str, object]:
    samples = found.samples
    return {
        "latency_ms": {
            operation: {
                peer: {
                    "n": samples.count(operation, peer),
                    "p50": samples.p50(operation, peer),
                    "p95": samples.p95(operation, peer),
                }
                for peer in samples.peers(operation)
            }
            for operation in samples.operations()
        },
        "per_second": found.rates,
        "idle_bytes": {
            idle.peer: {
                "sessions": idle.sessions,
                "by_available": idle.by_available,
                "by_cgroup": idle.by_cgroup,
            }
            for idle in found.idle
        },
        "networked_bytes": found.networked,
        "growth_bytes": found.growth,
        "output_bytes": found.output_bytes,
        "absent_peers": list(found.absent),
        "seconds": found.seconds,
        "verdicts": [{"what": v.what, "measured": v.measured, "ok": v.ok} for v in verdicts(found)],
    }


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """First columns to the left, figures to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    left = 3 if len(widths) == 3 else 2
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
