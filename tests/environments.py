"""Python environments that tests need beside their own, each from its locked requirements.

Built once per checkout and lock below build/; two runs at once build one. Nothing but what the
lock names is in them.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def environment(name: str) -> Path:
    """Return the interpreter of an environment with `requirements/<name>.txt`; create it once."""
    lock = ROOT / "requirements" / f"{name}.txt"
    home = ROOT / "build" / f"{name}-venv"
    stamp, wanted = home / ".lock", hashlib.sha256(lock.read_bytes()).hexdigest()
    python = home / "bin" / "python"
    home.parent.mkdir(exist_ok=True)
    with (home.parent / f".{name}-venv.flock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if stamp.is_file() and stamp.read_text() == wanted:
            return python
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run(
            [
                *(str(python), "-m", "pip", "install", "--quiet", "--no-input"),
                *("--disable-pip-version-check", "--require-hashes", "-r", str(lock)),
            ],
            check=True,
        )
        stamp.write_text(wanted)
    return python


def compat() -> Path:
    """Another implementation's client."""
    return environment("compat")


def examples() -> Path:
    return environment("examples")
