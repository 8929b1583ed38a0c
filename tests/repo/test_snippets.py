"""Every Python snippet of the documents runs as written, in its own process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from plugins.integrations.tests.frameworks import FRAMEWORKS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
# tests/examples/test_pages.py runs the README, plugins/integrations/tests the guides of frameworks.
DOCUMENTS = sorted({*(ROOT / "docs").rglob("*.md")} - {one.page for one in FRAMEWORKS})
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Each of these starts a daemon as well, or installs something.
COSTLY = pytest.mark.long(reason="`make test` runs the snippets of other guides")
INSTALLS = ("building-images.md", "genkit.md", "packages.md")
SNIPPETS = [
    pytest.param(
        code,
        id=f"{path.relative_to(ROOT)}-{number}",
        marks=[COSTLY]
        if path.name in INSTALLS or (path.name == "daemon-client.md" and number > 1)
        else [],
    )
    for path in DOCUMENTS
    if path.parent.name != "reference"
    for number, code in enumerate(FENCE.findall(path.read_text()), 1)
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_a_snippet_runs_as_written(code: str, tmp_path: Path) -> None:
    words = [sys.executable, "-W", "error", "-c", code]
    env = {"PATH": "/usr/bin:/bin", "SANDKASTEN_DATA_DIR": str(tmp_path / "data")}
    if "localhost:8080" in code:
        (tmp_path / "sandkasten.key").write_text("sk-sandbox-...\n")
        # A network of its own, with a daemon where the documents say one is.
        alone = ["unshare", "--net", sys.executable, "-m", "tests.examples.alone"]
        words = [*alone, str(tmp_path / "served"), *words]
        env |= {"EXAMPLE_BACKEND": "local", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_there_are_snippets_to_run() -> None:
    assert len(SNIPPETS) > 5
