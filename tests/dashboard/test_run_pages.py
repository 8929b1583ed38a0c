"""Pages of agents, workflows and runs, in a browser on a real daemon with a scripted model."""

from __future__ import annotations

import pytest

from tests.agents.agency import files_in
from tests.agents.agency import played as script
from tests.client.http.served import served
from tests.dashboard.scenarios import played
from tests.models.server import in_thread
from tests.patience import FAR_TOO_LATE_S

pytestmark = [
    pytest.mark.promise("P88"),
    pytest.mark.root,
    pytest.mark.long(reason="a browser takes a minute"),
    pytest.mark.timeout(10 * FAR_TOO_LATE_S),
]

REVIEW = """id: review
name: Review and decide
description: Writes a note, reads it and decides how to go on.
steps:
  - {id: write, type: agent, agent: writer, task: "${input.text}"}
  - {id: read, type: agent, agent: reader, task: "read"}
  - id: check
    type: switch
    expression: size(steps.read.output.said) > 3
    transitions:
      - {condition: "true", next: done}
      - {condition: "false", next: write}
  - {id: done, type: end, output: {said: "${steps.read.output.said}"}}
"""
BROKEN = "---\nmodel: [\n---\n"


def test_a_workflow_is_started_watched_and_cancelled(tmp_path):
    files_in(tmp_path, {"workflows/review.yaml": REVIEW, "agents/broken.prompt": BROKEN})
    with (
        in_thread(script) as model,
        served(
            tmp_path / "data",
            backend="local",
            SANDKASTEN_AGENTS_DIRS=str(tmp_path / "agents"),
            SANDKASTEN_WORKFLOWS_DIRS=str(tmp_path / "workflows"),
            SANDKASTEN_MODELS_BASE_URL=model.base_url,
        ) as daemon,
    ):
        played("runs", daemon)
