"""E2B's published JavaScript SDK on our daemon."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from plugins.e2b.tests.conftest import e2b_variables
from plugins.e2b.tests.test_e2b_domain import daemon_with_a_domain
from tests.client.http.served import served

PACKAGES = ("e2b@2.51.0", "@e2b/code-interpreter@2.8.0")
SCRIPT = Path(__file__).with_name("e2b_drive.mjs")


SEEN = {
    "run": [0, "out\n", "err\n"],
    "read": "grüße",
    "several": ["/home/user/b", "/tmp/c"],
    "list": ["a.txt", "b"],
    "stdin": "typed\n",
    "kill": True,
    "pty": True,
    "listed": [True],
    "watch": [["w", "create"], ["w", "write"], ["w", "chmod"]],
    "url": "grüße",
    "metadata": {"author": "ada"},
    "exists": [False, True],
    "bytes": 1,
    "connected": "got more\n",
    "failed": [3, "before\n"],
    "late": "TimeoutError",
    "pause": [True, False],
    "resumed": [True, True],
    "metrics": True,
    "info": ["js", "running", True],
    "code": ["42", "ZeroDivisionError"],
    "context": "/tmp",
    "killed": True,
    "end": [True, True, False],
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A directory with the SDK and the program."""
    place = tmp_path_factory.mktemp("npm")
    npm = shutil.which("npm")
    assert npm is not None
    (place / "package.json").write_text("{}")
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", *PACKAGES]
    subprocess.run(command, cwd=place, check=True, capture_output=True, timeout=110)
    shutil.copy(SCRIPT, place)
    return place


@pytest.mark.long(reason="it installs the SDK from npm")
def test_the_javascript_sdk_runs_unchanged(installed, tmp_path):
    with served(tmp_path / "data", backend="local") as daemon:
        done = subprocess.run(
            ["node", SCRIPT.name],
            cwd=installed,
            env=e2b_variables(daemon),
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == SEEN


@pytest.mark.promise("P90")
@pytest.mark.long(reason="it installs the SDK from npm")
def test_the_javascript_sdk_needs_only_the_domain(installed):
    with daemon_with_a_domain() as domain:
        done = domain.names.run(["node", SCRIPT.name], domain.env, cwd=installed)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {**SEEN, "port": [200, 401]}
