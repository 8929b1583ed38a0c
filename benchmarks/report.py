"""Results as a table for a terminal, and as a page with plots. Pure but for `write`.

`python -m benchmarks.report` writes the page and the plots of docs/benchmarks/results.json again.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import plot, results, rows
from benchmarks.peers.contestants import NAMES, OPEN, OURS
from benchmarks.rows import COMPARISON, Row, Verdict, amount, by_operation, peers_ahead, times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.results import Results
    from benchmarks.samples import Summary

PLACE: Final = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"
RESULTS: Final = "results.json"
PAGE: Final = "README.md"
NO_REASON: Final = "**no reason is known**"
_MET: Final = {True: "met", False: "**missed**", None: "not measured"}
_NOTE: Final = "<!-- made from results.json by benchmarks/report.py; do not edit -->"
# Load average per processor above which absolute values mean little.
_BUSY: Final = 0.5
# A share of the processors' time.
_MUCH_STOLEN: Final = 0.05
_HEAD: Final = """\
# Benchmark results

These are results of Sandkasten and its peers, from one run of `make bench` on one machine.
Each contestant has its own process and its own environment.
They take turns, so that other work of the machine affects all of them: ratios mean more than times.
[What the rows mean](../reference/benchmarks.md), [the same as JSON](results.json),
and [a daemon with up to 1,000 sandboxes](density/README.md).
"""


def verdicts(outcome: Results) -> list[Verdict]:
    return rows.verdicts(outcome.measured, set(outcome.parts))


def write(outcome: Results, place: Path) -> None:
    """Write the results and everything that is made of them."""
    place.mkdir(parents=True, exist_ok=True)
    (place / RESULTS).write_text(
        results.dumped(outcome, [asdict(verdict) for verdict in verdicts(outcome)])
    )
    # What is written is rounded, and the pages are made from that: made again, they are the same.
    for name, content in rendered(results.loaded(place / RESULTS)).items():
        (place / name).write_text(content)


def rendered(outcome: Results) -> dict[str, str]:
    """Return the files beside the results, by name."""
    drawn = {
        f"{row.plot}.svg": _plot(row, outcome.measured[row.operation])
        for row in COMPARISON
        if row.operation in outcome.measured
    }
    return {PAGE: page(outcome), **drawn}


# ---- a terminal


def text(outcome: Results) -> str:
    lines = [("operation", "peer", "of ours", "p50", "p95", "p99", "n", "failed")]
    for operation in _operations(outcome):
        row, peers = by_operation(operation), outcome.measured[operation]
        for peer in _ordered(peers):
            summary = peers[peer]
            lines.append((operation, peer, _ratio(row, peers, peer), *_values(row, summary)))
    judged = [
        (
            {True: "met", False: "MISSED", None: "----"}[verdict.ok],
            verdict.operation,
            verdict.goal,
            verdict.measured,
        )
        for verdict in verdicts(outcome)
    ]
    absent = [f"{name} did not take part: {entrant.absent}" for name, entrant in _absent(outcome)]
    absent += _failed(outcome)
    return "\n".join([_aligned(lines, 2), "", _aligned(judged, 4), *absent])


def _aligned(lines: Sequence[tuple[str, ...]], left_columns: int) -> str:
    """First columns to the left, values to the right."""
    if not lines:
        return ""
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at < left_columns else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


# ---- a page


def page(outcome: Results) -> str:
    present = [row for row in COMPARISON if row.operation in outcome.measured]
    parts = [_NOTE, "", _HEAD, *_conditions(outcome), "", *_matrix(outcome, present), ""]
    parts += [*_goals(outcome), "", *_ahead(outcome, present), "", *_entrants(outcome), ""]
    parts += ["## Rows", ""]
    for row in present:
        parts += [*_section(row, outcome), ""]
    others = [name for name in _operations(outcome) if not by_operation(name).plot]
    if others:
        parts += [
            "## Ours alone",
            "",
            "Sandkasten against the same work without it, or without the part in question.",
            "",
        ]
        parts += ["| operation | peer | of ours | p50 | p95 | n |", "|---|---|---|---|---|---|"]
        for operation in others:
            row, peers = by_operation(operation), outcome.measured[operation]
            for peer in _ordered(peers):
                p50, p95, _, n, _ = _values(row, peers[peer])
                parts.append(
                    f"| {operation} | {peer} | {_ratio(row, peers, peer)} | {p50} | {p95} | {n} |"
                )
    return "\n".join(parts).rstrip() + "\n"


def _conditions(outcome: Results) -> list[str]:
    machine, parts = outcome.machine, list(outcome.parts.values())
    if not parts:
        return ["Nothing was measured yet."]
    loads = [load for part in parts for load in (part.load_before, part.load_after)]
    revisions = ", ".join(dict.fromkeys(part.revision for part in parts))
    gigabytes = int(machine["memory_bytes"]) / 1e9
    lines = [
        f"- **Machine**: {machine['processors']} processors ({machine['processor']}), "
        f"{gigabytes:.0f} GB, Linux {machine['kernel']}, Python {machine['python']}.",
        f"- **When**: {parts[0].began_at[:10]}, revision {revisions}, "
        f"{sum(part.seconds for part in parts):.0f} s.",
        f"- **Load average**: {min(loads):.1f} to {max(loads):.1f}, the benchmark's own included.",
    ]
    stolen = max(part.stolen for part in parts)
    if stolen > _MUCH_STOLEN:
        lines.append(
            f"- **The host gave up to {stolen:.0%} of the processors' time to other guests** in a "
            "section. Operations of several processes are delayed more than those of one."
        )
    if parts[0].load_before > _BUSY * int(machine["processors"]):
        lines.append(
            "- **The machine had other work** when the run began: absolute values are too high, "
            "and ratios are less certain than on a quiet machine."
        )
    if any(part.quick for part in parts):
        lines.append("- **Small sizes** (`--quick`): fewer turns than a full run.")
    lines += [f"- **Not measured**: {line}." for line in _failed(outcome)]
    return lines


def _matrix(outcome: Results, present: list[Row]) -> list[str]:
    """Peers down, rows across: how many times ours."""
    peers = [
        name
        for name in NAMES
        if any(name in outcome.measured[row.operation] for row in present) and name not in OURS
    ]
    lines = ["## How many times as long as Sandkasten", ""]
    lines.append("For commands per second: how many times fewer. Above 1, Sandkasten is ahead.")
    lines.append("Peers in italics have no isolation.")
    lines.append("")
    lines.append("| | " + " | ".join(row.operation for row in present) + " |")
    lines.append("|---|" + "---|" * len(present))
    for peer in peers:
        cells = [_cell(row, outcome.measured[row.operation], peer) for row in present]
        name = f"*{peer}*" if peer in OPEN else peer
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _cell(row: Row, peers: dict[str, Summary], peer: str) -> str:
    if peer not in peers:
        return "–"
    return "failed" if peers[peer].p50 is None else _advantage(row, peers, peer)


def _advantage(row: Row, peers: dict[str, Summary], peer: str) -> str:
    """Return how far our lead is ahead; below 1 it is behind."""
    lead = peers.get(row.lead)
    other = peers[peer].p50
    if lead is None or not lead.p50 or not other:
        return ""
    return times(lead.p50 / other if row.unit == "/s" else other / lead.p50)


def _goals(outcome: Results) -> list[str]:
    wanted = {row.operation for row in COMPARISON}
    lines = ["## Goals", "", "| row | goal | measured | |", "|---|---|---|---|"]
    judged = sorted(verdicts(outcome), key=lambda verdict: verdict.operation not in wanted)
    for verdict in judged:
        kind = f"{_MET[verdict.ok]}{', a promise' if verdict.promise else ''}"
        if verdict.ok is False and verdict.why_missed:
            kind += f": {verdict.why_missed}"
        lines.append(f"| {verdict.operation} | {verdict.goal} | {verdict.measured} | {kind} |")
    return lines


def _ahead(outcome: Results, present: list[Row]) -> list[str]:
    lines = ["## Where a peer is ahead", "", "Each row below has the reasons.", ""]
    lines += ["| row | with isolation | without |", "|---|---|---|"]
    for row in present:
        peers = outcome.measured[row.operation]
        ahead = [
            (peer, f"{peer} ({_advantage(row, peers, peer)})")
            for peer in peers_ahead(row, outcome.measured, OURS)
        ]
        closed = ", ".join(shown for peer, shown in ahead if peer not in OPEN)
        opened = ", ".join(shown for peer, shown in ahead if peer in OPEN)
        lines.append(f"| {row.operation} | {closed or '–'} | {opened or '–'} |")
    return lines


def _reasons(row: Row, outcome: Results) -> list[str]:
    """Return why peers are ahead in a row, one line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for peer, reason in peers_ahead(row, outcome.measured, OURS).items():
        by_reason.setdefault(reason or NO_REASON, []).append(peer)
    return [f"- Ahead: {', '.join(peers)}: {reason}." for reason, peers in by_reason.items()]


def _entrants(outcome: Results) -> list[str]:
    lines = ["## Contestants", "", "| | what | version |", "|---|---|---|"]
    for name, entrant in outcome.entrants.items():
        note = (
            f"did not take part: {entrant.absent}"
            if entrant.absent
            else entrant.version or "this checkout"
        )
        lines.append(f"| {name} | {entrant.what} | {note} |")
    return lines


def _section(row: Row, outcome: Results) -> list[str]:
    peers = outcome.measured[row.operation]
    lines = [f"### {row.operation}", "", f"![{_alt(row, peers)}]({row.plot}.svg)", ""]
    head = ("contestant", "of ours", "p50", "p95", "p99", "n", "success")
    lines += ["| " + " | ".join(head) + " |", "|---|" + "---|" * (len(head) - 1)]
    for peer in _ordered(peers):
        summary = peers[peer]
        p50, p95, p99, n, _ = _values(row, summary)
        success = f"{summary.success:.0%}" + (f" ({summary.reason})" if summary.reason else "")
        cells = (peer, _ratio(row, peers, peer), p50, p95, p99, n, success)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    reasons = _reasons(row, outcome)
    return [*lines, "", *reasons] if reasons else lines


def _alt(row: Row, peers: dict[str, Summary]) -> str:
    lead = peers.get(row.lead)
    value = f"{row.lead} {amount(lead.p50)} {row.unit}" if lead and lead.p50 else "not measured"
    return f"Bars of {row.operation} for {len(peers)} contestants; {value}."


def _plot(row: Row, peers: dict[str, Summary]) -> str:
    def size(peer: str) -> float:
        value = peers[peer].p50
        return float("inf") if value is None else -value if row.unit == "/s" else value

    bars: list[plot.Bar] = []
    for peer in sorted(peers, key=size):
        p50, ratio = peers[peer].p50, _ratio(row, peers, peer)
        kind: plot.Kind = "ours" if peer in OURS else "open" if peer in OPEN else "peer"
        shown = "failed" if p50 is None else f"{amount(p50)} {row.unit}"
        bars.append(plot.Bar(peer, p50, f"{shown} · {ratio}" if ratio else shown, kind))
    better = "more is better" if row.unit == "/s" else "less is better"
    note = f"p50 and times {row.lead}; {better}; logarithmic scale; pale: no isolation"
    return plot.chart(row.operation, row.unit, note, bars)


# ---- shared


def _operations(outcome: Results) -> list[str]:
    """In the order of the rows, then those without goals."""
    order = {row.operation: at for at, row in enumerate(rows.ROWS)}
    return sorted(outcome.measured, key=lambda name: order.get(name, len(order)))


def _ordered(peers: dict[str, Summary]) -> list[str]:
    """Ours first, then in the order of the contestants, then those that are none."""
    order = {name: at for at, name in enumerate(NAMES)}
    return sorted(peers, key=lambda name: (name not in OURS, order.get(name, len(order)), name))


def _ratio(row: Row, peers: dict[str, Summary], peer: str) -> str:
    lead, value = peers.get(row.lead), peers[peer].p50
    if lead is None or not lead.p50 or value is None or peer == row.lead or value <= 0:
        return ""
    return times(value / lead.p50)


def _values(row: Row, summary: Summary) -> tuple[str, str, str, str, str]:
    shown = [
        "–" if value is None else f"{amount(value)} {row.unit}"
        for value in (summary.p50, summary.p95, summary.p99)
    ]
    return shown[0], shown[1], shown[2], str(summary.n), str(summary.failed)


def _absent(outcome: Results) -> list[tuple[str, results.Entrant]]:
    return [(name, entrant) for name, entrant in outcome.entrants.items() if entrant.absent]


def _failed(outcome: Results) -> list[str]:
    return [f"section {name}: {part.failed}" for name, part in outcome.parts.items() if part.failed]


def main() -> int:
    outcome = results.loaded(PLACE / RESULTS)
    write(outcome, PLACE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
