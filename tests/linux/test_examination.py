"""Examining a program from outside: a slow start is waited for, a real deviation is not."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from sandkasten_runtime.linux.confinement import posture, posture_probe

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandkasten_runtime.linux.confinement.posture import Posture

NOT_FOUND = ["the command started inside was not found from outside"]
# Nobody else's words on this machine.
WORDS = ("sleep", f"600.{os.getpid()}")
# More than it looks at once.
_MANY = 60


def _started(script: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["/bin/sh", "-c", script, "sh", WORDS[1]])


async def _looked_at(script: str, judge: Callable[[Posture], list[str]]) -> list[str]:
    with _started(script) as started:
        try:
            return await posture_probe.deviations(WORDS, os.getpid(), judge)
        finally:
            started.kill()


async def test_the_examination_waits_for_a_slow_program_to_start():
    seen: list[Posture] = []

    def judge(one: Posture) -> list[str]:
        seen.append(one)
        return []

    assert await _looked_at('sleep 0.5; exec sleep "$1"', judge) == []
    assert len(seen) == 1


@pytest.mark.long(reason="it waits for seconds")
async def test_the_examination_waits_for_a_descriptor_that_is_closed_late():
    looks = 0

    def judge(_: Posture) -> list[str]:
        nonlocal looks
        looks += 1
        return [f"{posture.INHERITED}: (0, 1, 2, 3)"] if looks < _MANY else []

    assert await _looked_at('exec sleep "$1"', judge) == []
    assert looks == _MANY


@pytest.mark.long(reason="`make test` has the self test of each backend")
async def test_a_permanent_deviation_is_reported_soon():
    looks = 0

    def judge(_: Posture) -> list[str]:
        nonlocal looks
        looks += 1
        return ["/dev is writable"]

    assert await _looked_at('exec sleep "$1"', judge) == ["/dev is writable"]
    assert looks <= _MANY


async def test_a_program_that_never_starts_is_reported(monkeypatch):
    monkeypatch.setattr(posture_probe, "_BECOMES_S", 0.1)
    assert await _looked_at("exec sleep 600", lambda _: []) == NOT_FOUND
