"""The image tests as an ordinary user: one id, own layers, no id mapping."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.security import test_as_ordinary_user as ordinary
from tests.security.harness import poll

pytestmark = [pytest.mark.root, pytest.mark.promise("P06")]


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("file", ["test_images.py", "test_ordinary_volumes.py", "test_probe.py"])
def test_images_work_for_an_ordinary_user(file):
    home = Path(tempfile.mkdtemp(prefix="pytest-of-ordinary-", dir="/var/tmp"))
    number = ordinary.THROW_AWAY_ID
    os.chown(home, number, number)
    command = [
        *("unshare", "--mount", "--propagation", "private", "--", "sh", "-c", ordinary.STAGE, "sh"),
        str(ordinary.REPOSITORY),
        *("setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups"),
        *("--inh-caps=-all", "--bounding-set=-all", "--"),
        *(ordinary._here(sys.executable), "-m", "pytest", f"tests/local/{file}", "-q"),
        *("-m", "not root", "--tb=short", "-o", f"cache_dir={home}/cache"),
        *("-o", "tmp_path_retention_policy=none"),
    ]
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "TMPDIR": str(home),
        "LANG": "C.UTF-8",
        "PYTHONPATH": "/mnt/src:/mnt",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
    finally:
        shutil.rmtree(home)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert " skipped" not in done.stdout
    poll("processes", lambda: ordinary._processes_of(number))
