"""Names of runtimes: the program that runs the code, and the language of the kernel."""

from __future__ import annotations

import pytest

from sandkasten.model.commands.code_values import checked_language
from sandkasten.model.language_runtimes import RUNTIME_NAMES, runtime_named

NAMES = {
    "python": ("python3", ".py", "python"),
    "python3": ("python3", ".py", "python"),
    "py": ("python3", ".py", "python"),
    "node": ("node", ".js", "javascript"),
    "javascript": ("node", ".js", "javascript"),
    "js": ("node", ".js", "javascript"),
    "bash": ("bash", ".sh", "bash"),
    "shell": ("bash", ".sh", "bash"),
    "linux": ("bash", ".sh", "bash"),
    "sh": ("sh", ".sh", "bash"),
}


def test_each_name_of_a_runtime_has_a_program_and_a_kernel():
    assert set(RUNTIME_NAMES) == NAMES.keys()
    for name, (program, suffix, language) in NAMES.items():
        runtime = runtime_named(name)
        assert runtime is not None
        assert (runtime.program, runtime.suffix, checked_language(name)) == (
            program,
            suffix,
            language,
        )


@pytest.mark.parametrize(
    ("name", "language"),
    [("ts", "typescript"), ("TypeScript", "typescript"), ("JS", "javascript"), ("r", "r")],
)
def test_a_language_of_a_kernel_is_given_in_any_case(name, language):
    assert checked_language(name) == language


@pytest.mark.parametrize("name", ["ts", "r", "JS", "", "cobol"])
def test_other_names_are_not_runtimes(name):
    assert runtime_named(name) is None
