"""How much of everything one run does. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    turns: int
    """Of each contestant in a part of the comparison; slow ones take fewer."""
    contestant_s: float
    """What one contestant may take of a part of the comparison; it has two turns at least."""
    comparison_s: float
    """A part of the comparison ends after its current round when this has passed."""
    file_sizes: tuple[tuple[str, int, int], ...]
    """Label, bytes, and how often in a turn."""
    rate_s: float
    starts: int
    """Of sandboxes that are staggered, and at once."""
    rounds: int
    """Of operations in the other sections."""
    execs: int
    """In each live session."""
    idle_sessions: int
    idle_peers: int
    """Fewer of the slow peers: a value per session needs no two hundred of them."""
    output_bytes: int
    engine_rounds: int
    """Of create, exec and destroy on docker, where each takes a tenth of a second and more."""
    engine_file_rounds: int
    contained_rounds: int
    """Of file operations and commands by a daemon in a container; each takes milliseconds."""
    pods: int
    """Created at once on a cluster."""
    download_bytes: int
    """Of each download through a network; told as if it were 1 GB."""
    section_s: float
    """A section stops after its current round when this has passed, whatever is left of it."""


FULL = Plan(
    turns=30,
    contestant_s=7.0,
    comparison_s=80.0,
    file_sizes=(("1 MB", 1_000_000, 5), ("50 MB", 50_000_000, 2)),
    rate_s=2.0,
    starts=10,
    rounds=12,
    execs=4,
    idle_sessions=100,
    idle_peers=8,
    output_bytes=1 << 29,
    engine_rounds=5,
    engine_file_rounds=2,
    contained_rounds=60,
    pods=100,
    download_bytes=500_000_000,
    section_s=10,
)
QUICK = Plan(
    turns=6,
    contestant_s=2.0,
    comparison_s=30.0,
    file_sizes=(("1 MB", 1_000_000, 3), ("50 MB", 50_000_000, 1)),
    rate_s=0.7,
    starts=6,
    rounds=5,
    execs=3,
    idle_sessions=40,
    idle_peers=4,
    output_bytes=1 << 28,
    engine_rounds=3,
    engine_file_rounds=2,
    contained_rounds=40,
    pods=20,
    download_bytes=300_000_000,
    section_s=6,
)
