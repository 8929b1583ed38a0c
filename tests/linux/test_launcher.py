"""What is made of a launcher that does not do what it should."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import BackendUnavailable, InternalError
from sandkasten.linux import launcher

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


@pytest.mark.usefixtures("impatient")
def test_a_launcher_that_says_nothing_is_an_error(tmp_path: Path) -> None:
    silent = script(tmp_path, "exec sleep 1000")
    with pytest.raises(BackendUnavailable, match="timed out"):
        launcher.launch(silent, {})
