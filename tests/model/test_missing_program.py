"""The hint for a program that the sandbox does not have."""

from __future__ import annotations

import pytest

from sandkasten.errors import CommandNotFound
from sandkasten.model.commands.missing_program import missing_program, missing_program_hint


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (
            ["cd", "/tmp"],
            "cd is a word of the shell: give the command as one string, 'cd /tmp', or run sh -c",
        ),
        (
            ["export", "A=x y"],
            "export is a word of the shell: give the whole command as one string, or run sh -c",
        ),
        (
            ["source", "venv/bin/activate", "&&", "make"],
            "source is a word of the shell: give the command as one string, "
            "'source venv/bin/activate && make', or run sh -c",
        ),
        (
            ["ls -l | wc"],
            "a list is a program and its arguments, and no shell reads it: give the command as "
            "one string, 'ls -l | wc', or run sh -c",
        ),
        (
            ["~/bin/tool", "x"],
            "a list is a program and its arguments, and no shell reads it: give the command as "
            "one string, '~/bin/tool x', or run sh -c",
        ),
        (
            ["A=1", "make"],
            "only a shell sets variables this way: give the command as one string, 'A=1 make', or "
            "run sh -c",
        ),
        (
            ["if " + "true; " * 40],
            "a list is a program and its arguments, and no shell reads it: give the whole command "
            "as one string, or run sh -c",
        ),
        (
            ["cd", "\x1b[2J"],
            "cd is a word of the shell: give the whole command as one string, or run sh -c",
        ),
        (["./x.sh"], "check the path, and for a script the interpreter in its first line"),
        (["pythn", "-c", "1"], "check the name and the image's PATH"),
        # The innocent twin: only its arguments look like the shell's.
        (["make", "A=1", "|"], "check the name and the image's PATH"),
    ],
)
def test_a_missing_program_has_the_remedy_for_what_was_probably_meant(argv, hint):
    assert missing_program_hint(argv) == hint


def test_only_the_hint_of_the_error_changes():
    error = CommandNotFound("cannot run cd: No such file", hint="x", runner_code="y")
    changed = missing_program(error, ["cd"])
    assert (changed.message, changed.details) == (error.message, error.details)
    assert changed.hint.startswith("cd is a word of the shell")
    assert missing_program(error, None) is error
