"""The guide to HTTP, run as written against a real daemon, with its output compared."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.daemon.process import running

pytestmark = pytest.mark.promise("P41")

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "http.md"
BLOCK = re.compile(r"^```bash\n(.*?)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
CUT = "=== end of a block ==="


@pytest.mark.long(reason="`make test` runs the README")
@pytest.mark.timeout(300)
async def test_every_command_of_the_guide_works_as_written(tmp_path):
    blocks = BLOCK.findall(GUIDE.read_text())
    assert len(blocks) == GUIDE.read_text().count("```bash") > 6
    script = "set -eu\n" + f"\necho '{CUT}'\n".join(shell for shell, _ in blocks)
    # What a reader sees one after the other, a busy machine may do at once.
    script = re.sub(r"sleep 0\.(\d)\b", r"sleep \1", script)
    async with running(tmp_path / "data") as daemon:
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", script,
            stdout=asyncio.subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin", "URL": daemon.url},
        )  # fmt: skip
        async with asyncio.timeout(240):
            said, _ = await process.communicate()
    assert process.returncode == 0
    assert said.decode().split(CUT + "\n") == [expected for _, expected in blocks]
