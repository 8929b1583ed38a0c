"""SWE-ReX's own tests of execution, on sandboxes."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from plugins.integrations.tests.conftest import DRIVES, counts, source_of

if TYPE_CHECKING:
    from pathlib import Path

    from plugins.integrations.tests.conftest import RunsInFramework

pytestmark = [
    pytest.mark.promise("P82"),
    pytest.mark.root,
    pytest.mark.long("a framework installs a hundred packages"),
    pytest.mark.timeout(1200),
]
# The first two share a directory with the server, the third waits for a pager's terminal.
OTHERS = ("test_read_write_file", "test_read_large_file", "test_interrupt_pager")


def test_the_tests_of_swe_rex_pass_on_a_sandbox(in_framework: RunsInFramework, tmp_path: Path):
    (fetched := tmp_path / "fetched").mkdir()
    (suite := tmp_path / "suite").mkdir()
    (suite / "__init__.py").touch()
    source = source_of("swe-rex", "1.4.0", "swe-rex", fetched) / "tests" / "test_execution.py"
    file = shutil.copy(source, suite)
    shutil.copy(DRIVES / "swe_rex_conftest.py", suite / "conftest.py")
    words = ("-W", "ignore", str(file), "-k", f"not ({' or '.join(OTHERS)})")
    done = in_framework("swe-rex", "-m", "pytest", *words)
    expected = {"passed": 46, "xfailed": 1, "deselected": 3}
    assert counts(done) == expected, done.stdout + done.stderr
