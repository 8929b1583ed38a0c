"""The same attacks on sandboxes that an ordinary user made: one id, no cgroups, no capability.

Each file runs again in a subprocess under a throw-away id. The repository is shown to it at /mnt in
a mount namespace of its own, because it may lie where only root can walk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
# Nobody's: above what distributions give to people, below what sandboxes get.
THROW_AWAY_ID = 54_321
FILES = [
    "test_archives.py",
    "test_files.py",
    "test_kernel_surface.py",
    "test_network.py",
    "test_posture.py",
    "test_processes.py",
    "test_shell.py",
    "test_shell_shadowing.py",
]
STAGE = 'mount --bind "$1" /mnt && shift && cd /mnt && exec "$@"'


def _here(path: str) -> str:
    """The same path, seen through /mnt."""
    prefix = str(REPOSITORY)
    return "/mnt" + path.removeprefix(prefix) if path.startswith(prefix + "/") else path


@pytest.mark.root
@pytest.mark.timeout(300)
@pytest.mark.parametrize("file", FILES)
def test_the_same_holds_for_an_ordinary_user(file):
    home = Path(tempfile.mkdtemp(prefix="pytest-of-ordinary-", dir="/var/tmp"))
    os.chown(home, THROW_AWAY_ID, THROW_AWAY_ID)
    packages = [_here(p) for p in sys.path if p.startswith(str(REPOSITORY)) and "src" not in p]
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(["/mnt/src", *packages]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if "SANDKASTEN_LONG" in os.environ:
        environment["SANDKASTEN_LONG"] = os.environ["SANDKASTEN_LONG"]
    command = [
        *("unshare", "--mount", "--propagation", "private", "--", "sh", "-c", STAGE, "sh"),
        str(REPOSITORY),
        *("setpriv", f"--reuid={THROW_AWAY_ID}", f"--regid={THROW_AWAY_ID}", "--clear-groups"),
        *("--inh-caps=-all", "--bounding-set=-all", "--"),
        *(_here(sys.executable), "-m", "pytest", f"tests/security/{file}", "-q", "-m", "not root"),
        *("--tb=short", "-o", f"cache_dir={home}/cache", "-o", "tmp_path_retention_policy=none"),
    ]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=290, check=False
        )
        left = [name for name in os.listdir(home) if name != "cache"]
    finally:
        shutil.rmtree(home)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert left == []
    assert _processes_of(THROW_AWAY_ID) == []


def _processes_of(uid: int) -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    status = Path(f"/proc/{name}/status").read_text()
                    if "State:\tZ" not in status:
                        found.append(status.splitlines()[0])
            except OSError:
                continue
    return found
