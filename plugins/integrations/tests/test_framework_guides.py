"""Every program of a framework's guide runs as written, in the environment of the framework."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from plugins.integrations.tests.frameworks import FRAMEWORKS

if TYPE_CHECKING:
    from pathlib import Path

    from plugins.integrations.tests.conftest import RunsInFramework
    from plugins.integrations.tests.frameworks import Framework

pytestmark = [
    pytest.mark.promise("P82"),
    pytest.mark.root,
    pytest.mark.long("a framework installs a hundred packages"),
    pytest.mark.timeout(1200),
]

FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAMS = [
    pytest.param(framework, code, id=f"{framework.page.stem}-{number}")
    for framework in FRAMEWORKS
    if framework.page.exists()
    for number, code in enumerate(FENCE.findall(framework.page.read_text()), 1)
]


@pytest.mark.parametrize(("framework", "code"), PROGRAMS)
def test_a_program_of_a_guide_runs_as_written(
    framework: Framework, code: str, in_framework: RunsInFramework, tmp_path: Path
) -> None:
    # A file, because some frameworks read the source of a function.
    program = tmp_path / "program.py"
    program.write_text(code)
    done = in_framework(framework.extra, str(program))
    assert done.returncode == 0, done.stdout + done.stderr
