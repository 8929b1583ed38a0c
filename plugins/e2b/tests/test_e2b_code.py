"""E2B's published code interpreter SDK on our daemon, with a real kernel of the host's image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from plugins.e2b.tests.conftest import e2b_variables
from tests.client_programs import run_client

if TYPE_CHECKING:
    from tests.client.http.served import Served

PROGRAM = Path(__file__).with_name("e2b_code_drive.py")


@pytest.fixture(scope="module")
def seen(daemon: Served) -> dict[str, Any]:
    return run_client(PROGRAM, env=e2b_variables(daemon))


@pytest.mark.promise("P79")
def test_code_runs_with_its_output_results_and_errors(seen):
    assert seen["runs"] == {
        "first": ["text", ["out\n"], ["err\n"], None],
        "callbacks": [["out\n"], ["err\n"], ["text"]],
        "kept": ["42", 1],
        "error": ["ZeroDivisionError", "division by zero", True],
        "env": ["1", "-"],
        "sandbox_env": "1",
        "files": ["/home/user", "by files"],
        "rich": {
            "html": "<b>x</b>",
            "markdown": "**x**",
            "svg": "<svg/>",
            "png": "cG5n",
            "latex": "$x$",
            "json": {"x": 1},
            "javascript": "x()",
        },
        "extra": {"x/y": "own"},
        "data": {"a": [1], "b": [2]},
        "chart": ["line", "Sales", "s", None, [["sold", [[2023, 3], [2024, 5]]]]],
    }


@pytest.mark.promise("P79")
def test_code_ends_with_its_client_and_with_its_sandbox(seen):
    assert seen["ends"] == {"timeout": True, "after": "1", "language": True}
    assert seen["end"] is True


@pytest.mark.promise("P79")
def test_contexts_are_made_listed_restarted_and_removed(seen):
    assert seen["contexts"] == {
        "cwd": ["/tmp", "/tmp"],
        "apart": "NameError",
        "listed": [["python", "/home/user"], ["python", "/tmp"]],
        "last": True,
        "restarted": "NameError",
        "removed": True,
    }
