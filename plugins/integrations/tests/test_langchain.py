"""LangChain's standard tests of sandbox backends, unmodified."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from plugins.integrations.tests.conftest import DRIVES, counts

if TYPE_CHECKING:
    from plugins.integrations.tests.conftest import RunsInFramework

pytestmark = [
    pytest.mark.promise("P82"),
    pytest.mark.root,
    pytest.mark.long("LangChain installs a hundred packages"),
    pytest.mark.timeout(1200),
]
# Of LangChain, and of our own.
STANDARD, OURS = 86, 4


def test_every_standard_test_of_a_sandbox_passes(in_framework: RunsInFramework):
    done = in_framework("langchain", "-m", "pytest", str(DRIVES / "langchain_standard.py"))
    assert counts(done)["passed"] == STANDARD + OURS, done.stdout + done.stderr
    assert done.returncode == 0


def test_every_standard_test_passes_with_the_published_backend_for_e2b(
    in_framework: RunsInFramework,
):
    done = in_framework("langchain", "-m", "pytest", str(DRIVES / "langchain_e2b_standard.py"))
    assert counts(done)["passed"] == STANDARD, done.stdout + done.stderr
    assert done.returncode == 0
