"""The program a new sandbox is examined by: found from outside, looked at once it is itself."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.linux.confinement import posture

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LOOKS, _LOOK_AGAIN_S = 40, 0.005
# On a busy machine a program takes seconds to become itself. Less than the subject rests (20 s),
# and than whoever examines has.
_BECOMES_S = 15.0


async def deviations(
    words: Sequence[str], first: int, judge: Callable[[posture.Posture], list[str]]
) -> list[str]:
    """What is wrong with the program of these first words, beside the sandbox's first process.

    One that just began may not be itself yet, or still have its loader's descriptor open: those two
    are given time. What is truly open stays so, and nothing else goes by waiting for it.
    """
    gives_up = time.monotonic() + _BECOMES_S
    for look in itertools.count(1):
        seen = await asyncio.to_thread(_seen, words, first)
        found = ["the command started inside was not found from outside"]
        if seen is not None:
            found = judge(seen)
        passing = seen is None or all(one.startswith(posture.INHERITED) for one in found)
        if not found or time.monotonic() > gives_up or (look >= _LOOKS and not passing):
            break
        await asyncio.sleep(_LOOK_AGAIN_S)
    return found


def _seen(words: Sequence[str], first: int) -> posture.Posture | None:
    for pid in posture.processes_in(first):
        try:
            cmdline = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
            if cmdline.split("\0")[: len(words)] == list(words):
                return posture.read(pid)
        except OSError:
            continue
    return None
