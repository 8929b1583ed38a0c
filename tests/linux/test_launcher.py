"""What is made of a launcher that does not do what it should."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import BackendUnavailable, InternalError
from sandkasten_runtime.linux import launcher

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_OUTER_DEADLINE_S", 0.2)


def script(folder: Path, body: str) -> Path:
    path = folder / "launcher"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.mark.usefixtures("impatient")
def test_a_launcher_that_answers_and_stays_is_ended(tmp_path: Path) -> None:
    answer = r"{\"pid\": 7, \"shared\": []}"
    stays = script(tmp_path, f'echo "{answer}"; exec sleep 1000')
    assert launcher.launch(stays, {}) == launcher.Launched(7)


def test_a_launcher_that_says_nonsense_and_stays_is_an_error(tmp_path: Path) -> None:
    stays = script(tmp_path, "echo nonsense; exec sleep 1000")
    with pytest.raises(InternalError, match="invalid answer"):
        launcher.launch(stays, {})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("kill -9 $$", "it was killed (SIGKILL)"),
        ("kill -11 $$", "it was killed (SIGSEGV)"),
        ("exit 3", "status 3"),
        ("echo broken >&2; exit 0", "status 0: broken"),
    ],
)
def test_a_launcher_that_ends_without_an_answer_is_unavailable(
    tmp_path: Path, body: str, reason: str
) -> None:
    with pytest.raises(BackendUnavailable) as raised:
        launcher.launch(script(tmp_path, body), {})
    assert raised.value.message == f"the launcher ended without an answer: {reason}"
    assert raised.value.hint


@pytest.mark.usefixtures("impatient")
def test_a_launcher_that_says_nothing_is_an_error(tmp_path: Path) -> None:
    silent = script(tmp_path, "exec sleep 1000")
    with pytest.raises(BackendUnavailable, match="timed out"):
        launcher.launch(silent, {})


def test_a_launcher_that_answers_is_waited_for_without_a_free_descriptor(tmp_path: Path) -> None:
    quick = script(tmp_path, r'echo "{\"pid\": 7, \"shared\": []}"')
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with launcher.StartedLauncher(quick) as started:
        # Those that are open stay open.
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            assert started.launch({}) == launcher.Launched(7)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
