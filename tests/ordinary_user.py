"""A user without root: one id, no groups, no capabilities, no cgroups.

The repository may be in a directory that only root can enter, so the user sees it at /mnt, in a
mount namespace of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.distributions import sources
from tests.hostwatch import loopwatch

if TYPE_CHECKING:
    from collections.abc import Mapping

REPOSITORY = Path(__file__).resolve().parents[1]
STAGE = Path("/mnt")
# Above the ids that distributions give to people, below those of sandboxes.
_FIRST_ID = 54_000
_ENTER = f'mount --bind "$1" {STAGE} && shift && cd {STAGE} && exec "$@"'


class OrdinaryUser:
    """`with OrdinaryUser() as user:` makes a home; `user.python(...)` runs a program there.

    The id is one that no other process of the machine has, so that `processes` counts this user's
    alone.
    """

    def __init__(self) -> None:
        self.id = _FIRST_ID + os.getpid() % 5_000
        self.home = Path(tempfile.mkdtemp(prefix="pytest-of-ordinary-", dir="/var/tmp"))

    def __enter__(self) -> OrdinaryUser:
        os.chown(self.home, self.id, self.id)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.home)

    @loopwatch.of_the_test
    def python(
        self, *words: str, env: Mapping[str, str] | None = None, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run this interpreter with this checkout, in the root of the repository."""
        return subprocess.run(
            [
                *("unshare", "--mount", "--propagation", "private", "--", "sh", "-c", _ENTER, "sh"),
                str(REPOSITORY),
                *("setpriv", f"--reuid={self.id}", f"--regid={self.id}", "--clear-groups"),
                *("--inh-caps=-all", "--bounding-set=-all", "--", staged(sys.executable), *words),
            ],
            env={
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "HOME": str(self.home),
                "LANG": "C.UTF-8",
                # The editable installation names directories that only root may be able to enter.
                "PYTHONPATH": ":".join(
                    str(STAGE / path) for path in [*sources(), "contract/src", ""]
                ),
                "PYTHONDONTWRITEBYTECODE": "1",
                **(env or {}),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )

    def pytest(
        self, *words: str, env: Mapping[str, str] | None = None, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run tests of this checkout; what they keep is in the home."""
        options = (
            *("-m", "pytest", "-q", "--tb=short", "-p", "no:xdist"),
            *("-o", f"cache_dir={self.home}/cache", "-o", "tmp_path_retention_policy=none"),
        )
        return self.python(*options, *words, env=env, timeout_s=timeout_s)

    def processes(self) -> list[str]:
        """Return the names of the user's processes; zombies do not count."""
        names = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    if os.stat(f"/proc/{entry}").st_uid == self.id:
                        status = Path(f"/proc/{entry}/status").read_text(errors="replace")
                        if "State:\tZ" not in status:
                            names.append(status.splitlines()[0])
                except OSError:
                    continue
        return names


def staged(path: str) -> str:
    """Return where the user sees a file of the repository."""
    prefix = str(REPOSITORY)
    return f"{STAGE}{path.removeprefix(prefix)}" if path.startswith(prefix + "/") else path
