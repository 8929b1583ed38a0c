"""Environments that tests need beside their own, each from its locked requirements.

Built once per checkout and lock below build/; two runs at once build one. Nothing but what the
lock names is in them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.distributions import build_wheels, directories

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
# The newest that the node of Debian can run.
VITE = "vite@6.4.1"
_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}
TYPESCRIPT = ROOT / "sdks" / "typescript"
# The oldest that the TypeScript client supports, where the machine's own is older.
_NODE = "20.20.0"
# Where their programs are; npm links them only by scripts of theirs, which are not run.
_JAVASCRIPT = {
    "deno@2.9.6": "@deno/linux-{machine}-glibc/deno",
    "bun@1.4.4": "@oven/bun-linux-{arm}/bin/bun",
    "esbuild@0.28.2": "esbuild/bin/esbuild",
}


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
    home, wheels = ROOT / "build" / "frameworks" / extra, _editable_wheels()
    with _locked(home):
        python = _with_requirements(home, ROOT / "requirements" / "frameworks" / f"{extra}.txt")
        if not _stamped(home / ".project", wheels / ".projects"):
            # The same version with other entry points must replace it.
            names = map(str, wheels.glob("*.whl"))
            _install(python, "--no-deps", "--no-index", "--force-reinstall", *names)
            _stamp(home / ".project", wheels / ".projects")
    return python


def _editable_wheels() -> Path:
    """Return a directory with the editable wheel of each of our distributions, and the text of
    their projects as `.projects`.
    """
    wheels = ROOT / "build" / "editable"
    projects = "".join((path / "pyproject.toml").read_text() for path in directories())
    with _locked(wheels):
        stamp = wheels / ".projects"
        if not stamp.is_file() or stamp.read_text() != projects:
            shutil.rmtree(wheels, ignore_errors=True)
            build_wheels(wheels, "editable")
            stamp.write_text(projects)
    return wheels


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


def dagger() -> Path:
    """Dagger's library, for the dagger backend."""
    return environment("dagger")


def compat() -> Path:
    """Another implementation's client."""
    return environment("compat")


def examples() -> Path:
    return environment("examples")


def previews() -> Path:
    """Servers that a browser opens."""
    return environment("previews")


def s3_server() -> Path:
    """Return the program of a server with S3's protocol."""
    return environment("s3-server").parent / "weed"


def streamlit() -> Path:
    return environment("streamlit")


def vite() -> Path:
    """Return a directory with Vite in `node_modules`; install it once."""
    return _npm_installed(ROOT / "build" / "vite", VITE)


def node() -> str:
    """Return a Node that the TypeScript client supports: the machine's, or one from npm."""
    found = shutil.which("node")
    assert found is not None, "node is missing: scripts/apt_packages.sh setup"
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    if int(said.lstrip("v").partition(".")[0]) >= 20:
        return found
    machine = _MACHINES[os.uname().machine]
    home = _npm_installed(ROOT / "build" / "node", f"node-linux-{machine}@{_NODE}")
    return str(home / "node_modules" / f"node-linux-{machine}" / "bin" / "node")


def typescript() -> Path:
    """Return the directory of the TypeScript client, compiled."""
    lock, stamp = TYPESCRIPT / "package-lock.json", TYPESCRIPT / "dist-tests" / ".sources"
    with _locked(ROOT / "build" / "typescript"):
        installed = TYPESCRIPT / "node_modules" / ".lock"
        if not _stamped(installed, lock):
            subprocess.run(
                [npm(), "ci", "--silent", "--ignore-scripts"], cwd=TYPESCRIPT, check=True
            )
            _stamp(installed, lock)
        sources = hashlib.sha256()
        for pattern in ("*.json", "src/**/*.ts", "tests/*.json", "tests/*.ts"):
            for path in sorted(TYPESCRIPT.glob(pattern)):
                sources.update(path.read_bytes())
        if not stamp.is_file() or stamp.read_text() != sources.hexdigest():
            for made in ("dist", "dist-tests"):
                shutil.rmtree(TYPESCRIPT / made, ignore_errors=True)
            compile_typescript()
            # Their types are checked by a test that is long.
            compile_typescript("--noCheck", "--project", "tests")
            stamp.write_text(sources.hexdigest())
    return TYPESCRIPT


def typescript_examples() -> Path:
    """Return the directory of the examples in JavaScript, with what they need."""
    typescript()
    home = ROOT / "examples" / "typescript"
    lock, stamp = home / "package-lock.json", home / "node_modules" / ".lock"
    with _locked(ROOT / "build" / "typescript-examples"):
        if not _stamped(stamp, lock):
            subprocess.run([npm(), "ci", "--silent", "--ignore-scripts"], cwd=home, check=True)
            _stamp(stamp, lock)
    return home


def dashboard() -> Path:
    """Return the directory of the dashboard, with what builds and drives it."""
    home = ROOT / "dashboard"
    # The stamp and the command are those of scripts/dashboard.sh.
    lock, stamp = home / "package-lock.json", home / "node_modules" / ".installed"
    with _locked(ROOT / "build" / "dashboard"):
        if not stamp.is_file() or stamp.read_bytes() != lock.read_bytes():
            command = [npm(), "install", "--no-save", "--ignore-scripts", "--silent"]
            subprocess.run(command, cwd=home, check=True)
            shutil.copyfile(lock, stamp)
    return home


def javascript(name: str) -> str:
    """Return another program that runs or bundles JavaScript: deno, bun or esbuild."""
    home = _npm_installed(ROOT / "build" / "javascript", *_JAVASCRIPT)
    machine = _MACHINES[os.uname().machine]
    (place,) = [path for package, path in _JAVASCRIPT.items() if package.startswith(f"{name}@")]
    arm = "aarch64" if machine == "arm64" else machine
    program = home / "node_modules" / place.format(machine=machine, arm=arm)
    program.chmod(0o755)
    return str(program)


def javascript_programs() -> Path:
    return Path(javascript("deno")).parent


def compile_typescript(*options: str) -> None:
    compiler = TYPESCRIPT / "node_modules" / "typescript" / "bin" / "tsc"
    subprocess.run([node(), str(compiler), *options], cwd=TYPESCRIPT, check=True)


def npm() -> str:
    npm = shutil.which("npm")
    assert npm is not None, "npm is missing: scripts/apt_packages.sh test"
    return npm


def _npm_installed(home: Path, *packages: str) -> Path:
    stamp = home / ".version"
    with _locked(home):
        if not stamp.is_file() or stamp.read_text() != " ".join(packages):
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir(parents=True)
            (home / "package.json").write_text("{}")
            command = [npm(), "install", "--no-audit", "--no-fund", "--ignore-scripts", *packages]
            subprocess.run(command, cwd=home, check=True, capture_output=True)
            stamp.write_text(" ".join(packages))
    return home
