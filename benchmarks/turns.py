"""Awaited things, timed in turns: each once in every round, and none always after the same."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from benchmarks.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from benchmarks.plan import Plan

    Turns = Mapping[str, Callable[[], Awaitable[object]]]

# The first of each pays for connections and caches.
_UNCOUNTED = 3


async def in_turns(
    samples: Samples,
    operation: str,
    turns: Turns,
    *,
    rounds: int,
    plan: Plan,
    after: Callable[[], Awaitable[object]] | None = None,
) -> None:
    """By peer. `after` each turn, untimed. Stops after a round when its time is over."""
    peers = list(turns)
    shuffled = random.Random(operation)  # the same in every run
    # A section has several operations, and each is to be measured.
    deadline = time.monotonic() + plan.section_s / 4
    for number in range(-_UNCOUNTED, rounds):
        into = samples if number >= 0 else Samples()
        shuffled.shuffle(peers)
        for peer in peers:
            with into.timed(operation, peer):
                await turns[peer]()
            if after is not None:
                await after()
        if time.monotonic() > deadline and number >= 0:
            return
