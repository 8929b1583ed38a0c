"""The chart of the README, made by its own lines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.promise("P80")
@pytest.mark.root
@pytest.mark.timeout(3600)
@pytest.mark.long(reason="it downloads packages and builds the image datascience")
@pytest.mark.parametrize("first", ["id=$(sandkasten create --pip", "sandkasten image build"])
def test_the_chart_of_the_readme_is_made_by_its_lines(tmp_path: Path, first: str):
    readme = (ROOT / "README.md").read_text()
    found = re.search(rf"```text\n(\$ {re.escape(first)}.*?)```", readme, re.S)
    assert found is not None
    lines = [line[2:] for line in found[1].splitlines() if line.startswith("$ ")]
    programs = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(lines)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "SANDKASTEN_DATA_DIR": str(tmp_path / "data"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in found[1].splitlines() if not line.startswith("$ ")]
    assert set(said) <= {*done.stdout.splitlines(), *done.stderr.splitlines()}, done.stderr
    if "code-1.png" in found[1]:
        # The version of matplotlib decides about the bytes.
        assert (tmp_path / "code-1.png").read_bytes().startswith(b"\x89PNG")
    assert "![A bar chart" in readme
