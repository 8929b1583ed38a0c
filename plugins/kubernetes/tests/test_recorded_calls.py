"""The backend makes the calls that were recorded on a real cluster, and makes the same of their
answers.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import BackendUnavailable
from tests.kubernetes.recorded import recorded_calls, scenes
from tests.kubernetes.recorded.replay import Replay
from tests.loopback_port import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kubernetes.recorded.recorded_calls import RecordedCall, Recording

_MOST_BYTES = 200_000


@pytest.fixture(scope="module")
def recording() -> Recording:
    return recorded_calls.read()


@pytest.mark.promise("P100")
@pytest.mark.parametrize(
    "scene", [*scenes.SCENES, *scenes.AGENT_SANDBOX_SCENES], ids=lambda function: function.__name__
)
async def test_the_backend_does_with_recorded_answers_what_it_did_with_real_ones(
    scene: scenes.Scene, recording: Recording, tmp_path: Path
):
    assert await _strange(scene, recording.scenes[scene.__name__], tmp_path) == []


async def _strange(scene: scenes.Scene, calls: list[RecordedCall], place: Path) -> list[str]:
    """Play a scene; return the calls that were made and not recorded, or recorded and not made."""
    async with Replay(calls, place) as server:
        stage = scenes.Stage(server.url, place, free_port(), server)
        try:
            await scene(stage)
        except BaseException as exc:
            if not server.strange:
                raise
            # Anything else is a consequence.
            raise AssertionError(server.strange) from exc
        finally:
            await stage.aclose()
    return [*server.strange, *(f"not made: {entry}" for entry in server.left)]


@pytest.mark.parametrize("change", ["left out", "exchanged"])
async def test_a_call_that_was_not_recorded_at_its_place_is_refused(
    change: str, recording: Recording, tmp_path: Path
):
    calls = list(recording.scenes[scenes.a_namespace_that_does_not_exist_is_named.__name__])
    calls = calls[1:] if change == "left out" else calls[::-1]
    async with Replay(calls, tmp_path) as server:
        stage = scenes.Stage(server.url, tmp_path, free_port(), server)
        with pytest.raises(BackendUnavailable, match="this call was not recorded"):
            await stage.backend(namespace="absent").create(scenes.ID, scenes.SPEC)
        await stage.aclose()
        assert len(server.strange) == 1
        assert recorded_calls.RENEW in server.strange[0]


async def test_a_watch_that_ends_after_each_event_goes_on_after_it(
    recording: Recording, tmp_path: Path
):
    scene = scenes.a_sandbox_from_create_to_destroy
    end = {"type": recorded_calls.END, "object": {}}
    calls = [
        replace(exchange, events=[each for event in exchange.events for each in (event, dict(end))])
        for exchange in recording.scenes[scene.__name__]
    ]
    assert await _strange(scene, calls, tmp_path) == []


def test_every_recorded_scene_is_played(recording: Recording):
    played = [scene.__name__ for scene in (*scenes.SCENES, *scenes.AGENT_SANDBOX_SCENES)]
    assert list(recording.scenes) == played
    assert re.fullmatch(r"v1\.\d+\.\d+", recording.version)


def test_the_recording_is_small_and_has_nothing_of_a_machine_in_it():
    text = recorded_calls.FILE.read_text()
    assert len(text) < _MOST_BYTES
    assert set(re.findall(r"\d+\.\d+\.\d+\.\d+", text)) <= {"127.0.0.1"}
    # Certificates, keys and tokens are long words.
    assert re.findall(r"[0-9a-f]{32,}|[A-Za-z0-9+/=]{48,}", text) == []
    assert {event["type"] for event in _events()} == {
        "ADDED", "MODIFIED", "DELETED", "ERROR", "BOOKMARK", recorded_calls.END,
    }  # fmt: skip


def _events() -> Iterator[Any]:
    for calls in recorded_calls.read().scenes.values():
        for call in calls:
            yield from call.events
