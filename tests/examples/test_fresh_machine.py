"""A Debian on which only `make setup` ran can do every step of the README."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.examples.page import Step, script_of, steps_of
from tests.imagekit import BUSYBOX

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
# Packages of Debian that steps need, by how a step begins, for root and for an ordinary user.
NEEDS = {
    "make": "",
    "export": "",
    "sandkasten image build": "mmdebstrap uidmap",
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
        packages = set(NEEDS[max(begins, key=len)].split()) - _setup()
        if packages:
            missing[step.command] = packages
    assert missing == {}


@pytest.mark.root
def test_a_fresh_machine_sees_no_variable_of_this_one(tmp_path: Path):
    root = tmp_path / "root"
    for name in ("bin", "proc", "sys", "dev", "run", "srv/sandkasten"):
        (root / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, root / "bin" / "busybox")
    for applet in ("sh", "env", "umount"):
        (root / "bin" / applet).symlink_to("busybox")
    shell = root / "bin" / "bash"
    shell.write_text('#!/bin/sh\nexec /bin/sh "$@"\n')
    shell.chmod(0o755)
    # The file system is there already.
    (tmp_path / "made").touch()
    (tmp_path / "program").write_text("env >/srv/seen\n")
    mine = {
        "PATH": os.environ["PATH"],
        "PIP_FIND_LINKS": "/opt/wheels",
        "SANDKASTEN_URL": "http://127.0.0.1:1",
        "LD_PRELOAD": "",
        "https_proxy": "http://proxy.test:3128",
    }
    subprocess.run(_machine(tmp_path, tmp_path / "program"), env=mine, check=True)
    seen = (line.partition("=") for line in (root / "srv" / "seen").read_text().splitlines())
    variables = {name: value for name, _, value in seen if name not in ("PWD", "SHLVL", "_")}
    assert variables == {
        "HOME": "/root",
        "USER": "root",
        "LOGNAME": "root",
        "SHELL": "/bin/bash",
        "TERM": "dumb",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        # Without it a closed network could not be left.
        "https_proxy": "http://proxy.test:3128",
    }


def _machine(directory: Path, program: Path, suite: str = "bookworm") -> list[str]:
    script = Path(__file__).with_name("fresh_machine.sh")
    return [*map(str, (script, directory, ROOT, program)), suite]


@pytest.mark.root
@pytest.mark.timeout(7200)
@pytest.mark.long(reason="it installs Debian, compiles the programs and builds an image")
@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_a_fresh_machine_can_do_each_step_of_the_readme(tmp_path: Path, suite: str):
    with socket.socket() as port:
        # The network is this machine's.
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port.bind(("127.0.0.1", 8080))
    steps = [Step("make setup"), Step(". .venv/bin/activate"), *_steps()]
    program = tmp_path / "program.sh"
    program.write_text(f"mkdir -p /srv/log\n{script_of(steps, '/srv/log')}\n")
    try:
        done = subprocess.run(
            _machine(tmp_path, program, suite), capture_output=True, text=True, check=False
        )
        _check(steps, tmp_path / "root" / "srv" / "log", done.stderr)
    finally:
        # Several gigabytes.
        shutil.rmtree(tmp_path / "root", ignore_errors=True)


def _check(steps: list[Step], log: Path, trouble: str) -> None:
    assert log.is_dir(), trouble
    for number, step in enumerate(steps):
        output = log / str(number)
        text = output.read_text() if output.exists() else trouble
        status = output.with_suffix(".status")
        assert (status.exists() and status.read_text()) == "0\n", f"{step.command}\n{text}"
        assert step.missing(text) == [], f"{step.command}\n{text}"
