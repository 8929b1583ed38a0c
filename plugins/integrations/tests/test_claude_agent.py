"""The tools of a sandbox in the Claude Agent SDK, called alone and by Claude Code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from plugins.integrations.tests.test_code_agents import told

if TYPE_CHECKING:
    from plugins.integrations.tests.conftest import RunsInFramework

pytestmark = [
    pytest.mark.promise("P82"),
    pytest.mark.root,
    pytest.mark.long("the SDK brings Claude Code, which has 350 MB"),
    pytest.mark.timeout(1200),
]
TOOLS = ["list_files", "read_file", "run_code", "run_command", "write_file"]
MISSING = (
    "FILE_NOT_FOUND: open /workspace/{0}: No such file or directory"
    " (hint: check the path; relative ones count from /workspace)"
)


def test_tools_run_commands_and_code_and_use_files(in_framework: RunsInFramework):
    report = told(in_framework, "claude-agent", "claude_agent_drive.py", "tools")
    assert report["names"] == TOOLS
    # The command is gone, and the shell is another one.
    assert report["stopped"] == [
        "ls: cannot access 'late': No such file or directory\n0\n[exit code 1]",
        False,
    ]
    stopped, wrong = report["shell"].pop()
    assert stopped.startswith("so\n")
    assert stopped.endswith("[timed out after 5 s]")
    assert not wrong
    assert report["shell"] == [
        ["[no output]", False],
        ["/workspace/d\n1\n", False],
        ["no\n[exit code 1]", False],
    ]
    unknown, wrong = report["code"].pop()
    assert unknown.startswith("INVALID_REQUEST: 'cobol' is not a valid runtime (hint: ")
    assert wrong
    assert report["code"] == [["42\n", False], ["[exit code 4]", False]]
    assert report["files"] == [
        ["wrote 5 bytes to /workspace/a/b.txt", False],
        ["hello", False],
        ["5\t/workspace/a/b.txt", False],
        ["[no files]", False],
        [["image", "image/png"], False],
        ["[a binary file of 2 bytes]", False],
        ["aaaaaaaaaa\n[cut: the file has 60000 bytes; continue with offset 50005]", False],
    ]
    assert report["refused"] == [
        [MISSING.format("none"), True],
        ["Input validation error: 'path' is a required property", True],
        ["Input validation error: -1 is less than or equal to the minimum of 0", True],
    ]


def test_claude_code_solves_a_task_with_the_tools_of_a_sandbox_alone(
    in_framework: RunsInFramework,
):
    assert told(in_framework, "claude-agent", "claude_agent_drive.py", "agent") == {
        "told": [
            ["wrote 22 bytes to /workspace/total.py", False],
            ["45\n[exit code 3]\n[the command ended the session's shell]", False],
            [MISSING.format("missing"), True],
        ],
        "texts": ["The total is 45."],
        "ended": "success",
        "kept": "print(sum(range(10)))\n",
        "offered": [f"mcp__sandkasten__{name}" for name in TOOLS],
    }
