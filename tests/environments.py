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
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
# The newest that the node of Debian can run.
VITE = "vite@6.4.1"


def environment(name: str) -> Path:
    """Return the interpreter of an environment with `requirements/<name>.txt`; create it once."""
    home = ROOT / "build" / f"{name}-venv"
    with _locked(home):
        return _with_requirements(home, ROOT / "requirements" / f"{name}.txt")


def framework(extra: str) -> Path:
    """Return the interpreter of an environment with a framework, its tests, and Sandkasten.

    Sandkasten is installed as an editable wheel: its entry points are there, and its modules are
    those of this checkout.
    """
    home, project = ROOT / "build" / "frameworks" / extra, ROOT / "pyproject.toml"
    with _locked(home):
        python = _with_requirements(home, ROOT / "requirements" / "frameworks" / f"{extra}.txt")
        if not _stamped(home / ".project", project):
            _install_sandkasten(python)
            _stamp(home / ".project", project)
    return python


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / f".{home.name}.flock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield


def _with_requirements(home: Path, lock: Path) -> Path:
    python = home / "bin" / "python"
    if not _stamped(home / ".lock", lock):
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        _install(python, "--require-hashes", "-r", str(lock))
        _stamp(home / ".lock", lock)
    return python


def _stamped(stamp: Path, source: Path) -> bool:
    return stamp.is_file() and stamp.read_text() == _digest(source)


def _stamp(stamp: Path, source: Path) -> None:
    stamp.write_text(_digest(source))


def _digest(source: Path) -> str:
    return hashlib.sha256(source.read_bytes()).hexdigest()


def _install(python: Path, *what: str) -> None:
    # Most modules are never imported; those that are get compiled then.
    pip = (str(python), "-m", "pip", "install", "--quiet", "--no-input", "--no-compile")
    subprocess.run([*pip, "--disable-pip-version-check", *what], check=True)


def _install_sandkasten(python: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        # Built by this environment: that of the framework has no build backend.
        words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel:editable", "-d", place]
        subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        (wheel,) = Path(place).glob("*.whl")
        # The same version with other entry points must replace it.
        _install(python, "--no-deps", "--no-index", "--force-reinstall", str(wheel))


def compat() -> Path:
    """Another implementation's client."""
    return environment("compat")


def examples() -> Path:
    return environment("examples")


def previews() -> Path:
    """Servers that a browser opens."""
    return environment("previews")


def vite() -> Path:
    """Return a directory with Vite in `node_modules`; install it once."""
    npm = shutil.which("npm")
    assert npm is not None, "npm is missing: scripts/packages.sh long"
    home = ROOT / "build" / "vite"
    stamp = home / ".version"
    with (home.parent / ".vite.flock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not stamp.is_file() or stamp.read_text() != VITE:
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
            (home / "package.json").write_text("{}")
            command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", VITE]
            subprocess.run(command, cwd=home, check=True, capture_output=True)
            stamp.write_text(VITE)
    return home
