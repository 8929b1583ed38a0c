"""How much of everything one run does. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int
    """Of create, exec, destroy and one-shot, each peer once a round."""
    execs: int
    """In each live session."""
    file_rounds: int
    slice_s: float
    """How long each peer is driven for one throughput figure."""
    slices: int
    idle_sessions: int
    idle_peers: int
    """Fewer of the slow peers: a figure per session needs no two hundred of them."""
    output_bytes: int
    engine_rounds: int
    """Of create, exec and destroy on docker, where each takes a tenth of a second and more."""
    engine_file_rounds: int
    contained_rounds: int
    """Of file operations and commands by a daemon in a container; each takes milliseconds."""
    download_bytes: int
    """Of each download through a network; told as if it were 1 GB."""
    section_s: float
    """A section stops after its current round when this has passed, whatever is left of it."""


FULL = Plan(
    rounds=30,
    execs=5,
    file_rounds=10,
    slice_s=2.0,
    slices=2,
    idle_sessions=200,
    idle_peers=20,
    output_bytes=1 << 30,
    engine_rounds=12,
    engine_file_rounds=5,
    contained_rounds=200,
    download_bytes=1_000_000_000,
    section_s=75,
)
QUICK = Plan(
    rounds=8,
    execs=3,
    file_rounds=3,
    slice_s=1.0,
    slices=1,
    idle_sessions=50,
    idle_peers=5,
    output_bytes=1 << 28,
    engine_rounds=4,
    engine_file_rounds=2,
    contained_rounds=40,
    download_bytes=300_000_000,
    section_s=20,
)
