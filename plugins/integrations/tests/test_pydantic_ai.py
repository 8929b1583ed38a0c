"""Pydantic AI's conformance tests of workspaces, unmodified, and an agent with a scripted model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from plugins.integrations.tests.conftest import DRIVES, counts

if TYPE_CHECKING:
    from plugins.integrations.tests.conftest import RunsInFramework

pytestmark = [
    pytest.mark.promise("P82"),
    pytest.mark.root,
    pytest.mark.long("a framework installs fifty packages"),
    pytest.mark.timeout(1200),
]
# Of Pydantic AI, and of our own. One is for a backend that resolves links itself: ours leaves that
# to Pydantic AI.
CONFORMANCE, OURS, SKIPPED = 37, 7, 1


def test_every_conformance_test_of_a_workspace_passes(in_framework: RunsInFramework):
    done = in_framework("pydantic-ai", "-m", "pytest", str(DRIVES / "pydantic_ai_conformance.py"))
    assert counts(done) == {"passed": CONFORMANCE + OURS, "skipped": SKIPPED}, (
        done.stdout + done.stderr
    )
