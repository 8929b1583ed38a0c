"""Verdicts on ended commands: each one, and a case beside it that must not get it."""

from __future__ import annotations

import pytest

from sandkasten.model.commands.verdict import Ending, needs_figures, verdict
from sandkasten.model.sandbox.limits import Limits
from sandkasten.model.sandbox.usage import Usage

CALM = Usage(oom_kills=3, pids_refused=5)


def code(ending: Ending, after: Usage = CALM, **more: object) -> str | None:
    why = verdict(ending, Limits(), 7, before=CALM, after=after, **more)  # type: ignore[arg-type]
    return None if why is None else why.code


@pytest.mark.parametrize("exit_code", [0, 1, 2, 126, 127, 130, 255])
def test_a_plain_exit_has_no_verdict(exit_code):
    assert code(Ending(exit_code, None)) is None


def test_a_deadline_is_reported_with_its_length():
    why = verdict(Ending(None, 15, timed_out=True), Limits(), 7)
    assert why is not None
    assert (why.code, why.message) == ("TIMEOUT", "the command was stopped at its deadline of 7 s")


@pytest.mark.parametrize("ending", [Ending(None, 9), Ending(137, None)])
def test_a_kill_with_a_counted_oom_is_out_of_memory(ending):
    assert code(ending, Usage(oom_kills=4, pids_refused=5)) == "OOM"


def test_a_kill_without_a_counted_oom_is_a_signal():
    assert code(Ending(None, 9)) == "SIGNAL"
    assert code(Ending(137, None)) is None


def test_an_oom_elsewhere_does_not_explain_a_plain_failure():
    assert code(Ending(1, None), Usage(oom_kills=4, pids_refused=5)) is None


def test_refused_forks_explain_a_failure():
    assert code(Ending(1, None), Usage(oom_kills=3, pids_refused=6)) == "PIDS"
    assert code(Ending(0, None), Usage(oom_kills=3, pids_refused=6)) is None


def test_a_full_disk_explains_a_failure_and_not_a_success():
    assert code(Ending(1, None), full="/workspace") == "QUOTA"
    assert code(Ending(0, None), full="/workspace") is None


@pytest.mark.parametrize(
    "ending", [Ending(None, 31, sigsys=True), Ending(159, None), Ending(None, 31)]
)
def test_a_refused_system_call_is_reported(ending):
    assert code(ending) == "SECCOMP"


def test_a_shell_that_ended_is_reported():
    assert code(Ending(7, None, shell_reset=True)) == "SHELL_EXIT"
    assert code(Ending(0, None, shell_reset=True)) == "SHELL_EXIT"


def test_a_signal_we_sent_is_not_blamed_on_memory():
    after = Usage(oom_kills=4, pids_refused=5)
    assert code(Ending(None, 9, killed=True), after) == "SIGNAL"


def test_a_lost_command_is_reported_as_lost():
    assert code(Ending(None, None, lost=True)) == "LOST"
    shell = verdict(Ending(None, None, lost=True, shell_reset=True), Limits())
    assert shell is not None
    assert "shell" in shell.message
    assert code(Ending(None, None, lost=True, timed_out=True)) == "TIMEOUT"


def test_without_counters_an_oom_verdict_is_marked_as_a_guess():
    why = verdict(Ending(None, 9, oom_suspect=True), Limits(), before=Usage(), after=Usage())
    assert why is not None
    assert why.code == "SIGNAL"
    assert "memory" in why.hint
    counted = verdict(Ending(None, 9, oom_suspect=True), Limits(), before=CALM, after=CALM)
    assert counted is not None
    assert "memory" not in counted.hint


def test_counters_are_read_only_where_they_can_explain_a_failure():
    assert needs_figures(Ending(1, None))
    assert needs_figures(Ending(None, 9))
    assert not needs_figures(Ending(0, None))
    assert not needs_figures(Ending(None, 15, timed_out=True))
    assert not needs_figures(Ending(None, 9, killed=True))
