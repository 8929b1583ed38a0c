"""Inspect the test program of a new sandbox from outside, once it has started completely."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten_runtime.linux.confinement import posture

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LOOKS, _LOOK_AGAIN_S = 40, 0.005
# On a busy machine a program takes seconds to start. Less than the test program sleeps (20 s), and
# less than the caller's deadline.
_BECOMES_S = 15.0


async def deviations(
    words: Sequence[str], first: int, judge: Callable[[posture.Posture], list[str]]
) -> list[str]:
    """Return the deviations of the program with this command line, besides the first process.

    A program that just started may not have replaced its image yet, or may still have its loader's
    descriptor open: these two are given time. A real deviation stays, and waiting hides nothing
    else.
    """
    gives_up = time.monotonic() + _BECOMES_S
    for look in itertools.count(1):
        actual = await asyncio.to_thread(_seen, words, first)
        result = ["the command started inside was not found from outside"]
        if actual is not None:
            result = judge(actual)
        passing = actual is None or all(line.startswith(posture.INHERITED) for line in result)
        if not result or time.monotonic() > gives_up or (look >= _LOOKS and not passing):
            break
        await asyncio.sleep(_LOOK_AGAIN_S)
    return result


def _seen(words: Sequence[str], first: int) -> posture.Posture | None:
    for pid in posture.processes_in(first):
        try:
            cmdline = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
            if cmdline.split("\0")[: len(words)] == list(words):
                return posture.read(pid)
        except OSError:
            continue
    return None
