"""The guide to running agents, run as written, with the scripted model and a real daemon."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.daemon.process import running

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guides" / "running-agents.md"
BLOCK = re.compile(r"^```bash\n(.*?)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
CUT = "=== end of a block ==="


def commands(directory: Path) -> Path:
    """`sandkasten` and `python` as a reader of the guide has them."""
    directory.mkdir()
    for name, words in (("sandkasten", '-m sandkasten_server.cli "$@"'), ("python", '"$@"')):
        path = directory / name
        path.write_text(f"#!/bin/sh\nexec {sys.executable} {words}\n")
        path.chmod(0o755)
    return directory


@pytest.mark.long(reason="`make test` runs the README")
@pytest.mark.timeout(300)
async def test_every_command_of_the_guide_works_as_written(tmp_path):
    blocks = BLOCK.findall(GUIDE.read_text())
    assert len(blocks) == GUIDE.read_text().count("```bash") > 5
    script = "set -eu\n" + f"\necho '{CUT}'\n".join(shell for shell, _ in blocks)
    there = tmp_path / "agents"
    shutil.copytree(ROOT / "examples" / "agents", there)
    path = f"{commands(tmp_path / 'bin')}:/usr/bin:/bin"
    model = await asyncio.create_subprocess_exec(
        sys.executable, "demo_model.py", "--port", "0",
        cwd=there,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert model.stdout is not None
        url = (await model.stdout.readline()).decode().strip()
        environ = {
            "SANDKASTEN_MODELS_BASE_URL": url,
            "SANDKASTEN_AGENTS_DIRS": str(there / "agents"),
            "SANDKASTEN_WORKFLOWS_DIRS": str(there / "workflows"),
        }
        async with running(tmp_path / "data", environ=environ) as daemon:
            process = await asyncio.create_subprocess_exec(
                "bash", "-c", script,
                cwd=there,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={
                    "PATH": path,
                    "URL": daemon.url,
                    "SANDKASTEN_URL": daemon.url,
                    "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
                },
            )  # fmt: skip
            async with asyncio.timeout(240):
                said, wrong = await process.communicate()
    finally:
        model.kill()
        await model.wait()
    assert process.returncode == 0, wrong.decode()
    # Which daemon answered has another address each time, and is not in the guide.
    shown = re.sub(r"note: answered by the daemon [^\n]*\n", "", said.decode())
    assert shown.split(CUT + "\n") == [expected for _, expected in blocks]
