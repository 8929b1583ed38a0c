"""Every workflow of the guide is valid without warnings and completes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plugins.agents.tests.workflows.flow import Flow
from sandkasten_agents.workflows.workflow_file import inspect

GUIDE = Path(__file__).parents[4] / "docs" / "guides" / "workflows.md"
WRITTEN = re.findall(r"^```yaml\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
ANSWER = {"response": "ok", "all_passed": True, "severity": 9, "good": True}


@pytest.mark.parametrize("text", WRITTEN, ids=[text.split("\n")[0] for text in WRITTEN])
async def test_a_workflow_of_the_guide_runs_as_written(expressions, text) -> None:
    found = inspect(text)
    assert (found.errors, found.warnings) == ((), ())
    flow = Flow(text, expressions, lambda call: ANSWER)
    assert await flow.go({"file": "app.py", "files": ["a", "b"]}) is not None
    assert flow.calls


def test_there_are_workflows_in_the_guide() -> None:
    assert len(WRITTEN) == 5
