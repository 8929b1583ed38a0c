"""A Debian 12 on which only `make setup` ran can do every step of the README."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.examples.page import Step, script_of, steps_of

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
# Programs and parts of Debian that steps need, by how a step begins; None: it needs no package.
NEEDS = {
    "make": None,
    "export": None,
    "sandkasten image build": "mmdebstrap",
    "sandkasten code": "python3-ipykernel",
    "sandkasten": "python3",
    "id=$(sandkasten": "python3",
    "curl": "curl",
    "python": "python3",
    "cat": "coreutils",
}
LEFT_OUT = {
    r"^make |activate$": "they run first, or are another way in",
    r"^export OPENAI|agent run|sandkasten mcp": "it needs a model or a client",
}


def _steps() -> list[Step]:
    """Return the steps of the README, also of the blocks that `make test` leaves out."""
    return steps_of(README.replace("```text\n$ ", "```console\n$ "), LEFT_OUT)


def _setup() -> set[str]:
    text = (ROOT / "scripts" / "apt_packages.sh").read_text()
    found = re.search(r"^setup=\((.*?)^\)", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return set(re.sub(r"#.*|\\\\", "", found[1]).split())


def test_setup_installs_each_program_that_a_step_of_the_readme_needs():
    missing = {}
    for step in _steps():
        begins = [one for one in NEEDS if step.command.split()[: len(one.split())] == one.split()]
        assert begins, f"nothing says what this step needs: {step.command}"
        package = NEEDS[max(begins, key=len)]
        if package is not None and package not in _setup():
            missing[step.command] = package
    assert missing == {}


@pytest.mark.root
@pytest.mark.timeout(7200)
@pytest.mark.long(reason="it installs Debian, compiles the programs and builds an image")
def test_a_fresh_machine_can_do_each_step_of_the_readme(tmp_path: Path):
    steps = [Step("make setup"), Step(". .venv/bin/activate"), *_steps()]
    program = tmp_path / "program.sh"
    program.write_text(f"mkdir -p /srv/log\n{script_of(steps, '/srv/log')}\n")
    done = subprocess.run(
        [
            str(Path(__file__).with_name("fresh_machine.sh")),
            *(str(tmp_path), str(ROOT), str(program)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    log = tmp_path / "root" / "srv" / "log"
    assert log.is_dir(), done.stderr
    for number, step in enumerate(steps):
        said = log / str(number)
        told = said.read_text() if said.exists() else done.stderr
        status = said.with_suffix(".status")
        assert (status.exists() and status.read_text()) == "0\n", f"{step.command}\n{told}"
        assert step.missing(told) == [], f"{step.command}\n{told}"
