"""Sandbox agents of the OpenAI Agents SDK, with a scripted model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from plugins.integrations.tests.test_code_agents import told

if TYPE_CHECKING:
    from plugins.integrations.tests.conftest import RunsInFramework

pytestmark = [
    pytest.mark.promise("P82"),
    pytest.mark.root,
    pytest.mark.long("a framework installs a hundred packages"),
    pytest.mark.timeout(1200),
]
AGENT = {
    "answer": "The total is 45.",
    "told": ["1\n2\n3\n4\n5\n6\n7\n8\n9\n/workspace\n", "45\n", ""],
}


def test_a_sandbox_agent_solves_a_task_and_its_session_resumes(in_framework: RunsInFramework):
    assert told(in_framework, "openai-agents", "openai_agents_drive.py", "sandkasten") == {
        "agent": AGENT,
        "session": {
            "read": "kept",
            "mode": "test\n",
            "errors": ["ExecTimeoutError", "WorkspaceReadNotFoundError"],
            "listed": ["kept.txt"],
            "kept": "kept",
            "ran": [True, False],
        },
        "terminal": [None, 0, True, None],
        "left": 0,
    }


def test_the_client_for_e2b_of_the_sdk_runs_on_a_daemon(in_framework: RunsInFramework):
    report = told(in_framework, "openai-agents", "openai_agents_drive.py", "e2b")
    assert report == {"agent": AGENT}
