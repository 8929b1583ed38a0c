"""Agents of smolagents, AutoGen and Agent Framework work in sandboxes."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from plugins.integrations.tests.conftest import DRIVES, counts, source_of
from tests import imagekit

if TYPE_CHECKING:
    from pathlib import Path

    from plugins.integrations.tests.conftest import RunsInFramework

pytestmark = [
    pytest.mark.promise("P82"),
    pytest.mark.root,
    pytest.mark.long("a framework installs a hundred packages"),
    pytest.mark.timeout(1200),
]


def told(in_framework: RunsInFramework, extra: str, drive: str, *words: str):
    done = in_framework(extra, "-W", "ignore", str(DRIVES / drive), *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_code_agent_of_smolagents_works_in_a_sandbox(in_framework: RunsInFramework):
    assert told(in_framework, "smolagents", "smolagents_drive.py") == {
        "agent": {"answer": 42, "first": True, "second": True, "alive": False},
        "values": {
            "plain": ["['a', 'b', 'a', 'b', 'a', 'b']", "said\n", False],
            "tool": "6",
            "error": True,
        },
        "large": 300_000,
        "borrowed": "kept",
        "timeout": ["The code ended with status timed_out.", "1"],
    }


def test_the_executor_for_e2b_of_smolagents_runs_on_a_daemon(in_framework: RunsInFramework):
    assert told(in_framework, "smolagents", "smolagents_e2b_drive.py") == {
        "answer": 42,
        "first": True,
        "second": True,
        "running": [1, 0],
    }


def test_agents_of_autogen_run_code_in_a_sandbox(in_framework: RunsInFramework):
    report = told(in_framework, "autogen", "autogen_drive.py")
    [file_name] = report["restart"].pop(1)
    assert file_name.startswith("tmp_code_")
    assert report == {
        "coder": {
            "told": True,
            "answer": "The sum is 45.",
            "kept": "1\n2\n3\n4\n5\n6\n7\n8\n9\n",
            "alive": False,
        },
        "executor": "42\n",
        "restart": [0, 20],
    }


def test_autogens_own_tests_of_an_executor_pass(in_framework: RunsInFramework, tmp_path: Path):
    add = "import sandkasten; sandkasten.Images().import_archive({!r}, name='debian')"
    done = in_framework("autogen", "-c", add.format(str(imagekit.debian_tar())))
    assert done.returncode == 0, done.stderr
    (fetched := tmp_path / "fetched").mkdir()
    (suite := tmp_path / "suite").mkdir()
    source = source_of("autogen_ext", "0.7.5", "autogen", fetched) / "tests" / "code_executors"
    file = shutil.copy(source / "test_docker_commandline_code_executor.py", suite)
    shutil.copy(DRIVES / "autogen_conftest.py", suite / "conftest.py")
    # Its fixture outlives a test.
    loop = ("-o", "asyncio_default_fixture_loop_scope=module")
    words = (*loop, "-W", "ignore", str(file))
    done = in_framework("autogen", "-m", "pytest", *words)
    assert counts(done) == {"passed": 16}, done.stdout + done.stderr


def test_the_shell_and_the_files_of_agent_framework_are_those_of_a_sandbox(
    in_framework: RunsInFramework,
):
    assert told(in_framework, "agent-framework", "agent_framework_drive.py") == {
        "kept": ["kept in /tmp\n", "careful\n", 3],
        "late": ["begun\n", True, 124],
        "tool": ["terminal", "never_require", "exit_code: 0"],
        "exclusive": True,
        "refused": 4,
        "children": [["empty", "directory"], ["notes", "directory"]],
        "none": [None, []],
        "there": [False, True],
        "found": [["notes/one.md", 2]],
        "deleted": [True, False],
        "alive": False,
    }
