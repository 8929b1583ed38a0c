"""The README and the guides, run in order as a reader would: without a daemon, and with one.

The model is scripted; port 8080 is free, because each page has a network of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import imagekit
from tests.examples.page import script_of, steps_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.promise("P41"), pytest.mark.root, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
MACHINE = "it changes the machine, or needs what the machine may not have"
ANOTHER = "another program, which does not end by itself"
STARTED = "the daemon runs already"
NO_DAEMON = "nothing listens there"
KEY = "sk-of-the-pages"


@dataclass(frozen=True, slots=True)
class Page:
    path: str
    left_out: dict[str, str] = field(default_factory=dict)
    with_daemon: dict[str, str] = field(default_factory=dict)
    """Left out as well when a daemon runs from the start."""
    without: dict[str, str] | None = field(default_factory=dict)
    """Left out as well when none runs; None: the page needs one."""
    files: dict[str, str] = field(default_factory=dict)
    """What a reader brings along."""
    bring: Callable[[Path], object] | None = None
    """Makes more of it, in the reader's directory."""
    key: str = KEY
    """The key of the daemon that runs from the start; empty: it has none."""


README = Page(
    "README.md",
    {r"^make |activate$": MACHINE},
    with_daemon={r"^sandkasten (init|serve)": STARTED, r"doctor": "it tells of the machine alone"},
    files={"README.md": "# Sandkasten\n"},
)
GUIDES = [
    Page(
        "docs/guides/first-sandbox.md",
        {r"^make |activate$": MACHINE},
        files={
            "data.csv": "a,b\n1,2\n",
            "report.py": "import os, shutil; os.mkdir('out'); shutil.copy('data.csv', 'out/a.png')",
        },
    ),
    Page(
        "docs/guides/daemon-client.md",
        with_daemon={r"^sandkasten serve": STARTED},
        key="sk-sandbox-...",
    ),
    Page(
        "docs/guides/files.md",
        without={r"^curl": NO_DAEMON},
        files={"report.pdf": "%PDF", "table.csv": "a,b\n1,2\n"},
        key="",
    ),
    Page(
        "docs/guides/workspaces.md",
        {r"--mount models": "the operator's settings do not name it here"},
        files={"project/a.txt": "a"},
    ),
    Page("docs/guides/pausing.md"),
    Page("docs/guides/previews.md", {r"^sandkasten forward": ANOTHER}, without=None),
    Page(
        "docs/guides/keys-and-tenants.md",
        {r"--follow": ANOTHER},
        without={r"TENANT|^id=|^sandkasten (ls|rm)": "only a daemon knows tenants"},
    ),
    Page(
        "docs/guides/http-files.md",
        {r"fs/watch|BOX/watch": ANOTHER, r"^docker|images/pull": MACHINE},
        without=None,
        files=dict.fromkeys(("data.bin", "a.csv", "b.csv", "src/a.py", "big.csv"), "x"),
    ),
    Page(
        "docs/guides/images.md",
        {r"docker|image build": MACHINE},
        # As `docker save` writes it.
        bring=lambda here: imagekit.write_tar(
            here / "python.tar",
            imagekit.docker_members(
                imagekit.rootfs_sketch(
                    imagekit.debian_tar(),
                    names=("python:3.11-slim",),
                    config={"Env": ["PATH=/usr/bin:/bin"]},
                )
            ),
        ),
    ),
    Page(
        "docs/guides/mcp.md",
        {r"--transport http|^export": ANOTHER},
    ),
]


def run(page: Page, tmp_path: Path, *, daemon: bool) -> None:
    left_out = page.left_out | ((page.with_daemon if daemon else page.without) or {})
    steps = steps_of((ROOT / page.path).read_text(), left_out)
    here, log = tmp_path / "here", tmp_path / "log"
    for made in (here, log):
        made.mkdir()
    for name, text in page.files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)
    if page.bring is not None:
        page.bring(here)
    if daemon:
        (here / "sandkasten.key").write_text(page.key)
    environ = {
        "PATH": f"{commands(tmp_path / 'bin')}:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(here),
        "PYTHONPATH": str(ROOT),
        "SANDKASTEN_DATA_DIR": str(tmp_path / "data"),
        "EXAMPLE_BACKEND": "local",
        "EXAMPLE_DAEMON": page.key or "open" if daemon else "no",
        "EXAMPLE_MODEL": json.dumps(SCRIPT),
    }
    if page.key and daemon:
        environ["SANDKASTEN_API_KEY"] = page.key
    alone = ["unshare", "--net", sys.executable, "-m", "tests.examples.alone"]
    words = [*alone, str(tmp_path / "data"), "bash", "-c", script_of(steps, str(log))]
    done = subprocess.run(
        words, cwd=here, env=environ, capture_output=True, text=True, timeout=280, check=False
    )
    for number, step in enumerate(steps):
        said = log / str(number)
        status = said.with_suffix(".status")
        told = said.read_text() if said.exists() else ""
        told = told.replace(str(tmp_path / "data"), "/var/lib/sandkasten")
        assert status.exists(), f"{step.command}\n{told}\n{done.stdout}{done.stderr}"
        assert (status.read_text() == "0\n") != step.fails, f"{step.command}\n{told}"
        assert step.missing(told) == [], f"{step.command}\n{told}"
    assert (done.returncode, done.stderr) == (0, "")


SCRIPT = {"agents": [{"turns": [{"text": "There are 3."}]}]}


def commands(directory: Path) -> Path:
    """`sandkasten` and `python` as a reader has them."""
    directory.mkdir()
    for name, words in (("sandkasten", '-m sandkasten_server.cli "$@"'), ("python", '"$@"')):
        path = directory / name
        path.write_text(f"#!/bin/sh\nexec {sys.executable} {words}\n")
        path.chmod(0o755)
    return directory


@pytest.mark.parametrize(
    "daemon",
    [
        pytest.param(False, id="alone"),
        pytest.param(
            True,
            id="with-a-daemon",
            marks=pytest.mark.long(reason="`make test` runs the commands alone"),
        ),
    ],
)
def test_the_readme_runs_in_order(tmp_path: Path, daemon: bool) -> None:
    run(README, tmp_path, daemon=daemon)


MODES = [
    pytest.param(page, daemon, id=f"{Path(page.path).stem}-{'daemon' if daemon else 'alone'}")
    for page in GUIDES
    for daemon in (False, True)
    if daemon or page.without is not None
]


@pytest.mark.long(reason="`make test` runs the README, and the Python of every guide")
@pytest.mark.parametrize(("page", "daemon"), MODES)
def test_a_guide_runs_in_order(tmp_path: Path, page: Page, daemon: bool) -> None:
    run(page, tmp_path, daemon=daemon)
