"""The wheel of this checkout and clean environments to install it into, each made once."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts.distributions import build_wheels
from tests.patience import FAR_TOO_LATE_S
from tests.platform_choice import LONG

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment and a working directory, both outside the repository."""

    folder: Path
    venv: str = "venv"

    @property
    def python(self) -> Path:
        return self.folder / self.venv / "bin" / "python"

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        return subprocess.run(
            [str(self.python.with_name(program)), *arguments],
            cwd=elsewhere,
            env={
                "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
                "HOME": str(elsewhere),
                "LANG": "C.UTF-8",
                "SANDKASTEN_DATA_DIR": str(self.folder / "data"),
            },
            capture_output=True,
            text=True,
            timeout=FAR_TOO_LATE_S,
            check=False,
        )

    @property
    def site(self) -> Path:
        (found,) = self.folder.glob(f"{self.venv}/lib/python3*/site-packages")
        return found

    def pip(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python)]
        quiet = ["--disable-pip-version-check", "--no-input"]
        return subprocess.run(
            [*pip, *arguments, *quiet], capture_output=True, text=True, check=False
        )

    def install(self, *arguments: str) -> None:
        # Of all that is installed a few modules are imported, once.
        done = self.pip("install", "--no-compile", "--quiet", *arguments)
        assert done.returncode == 0, done.stderr


def make_environment(folder: Path) -> Environment:
    made = Environment(folder)
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True
    )
    return made


def build_wheel(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Offline: hatchling is the environment's own."""
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=source,
        env={**os.environ, "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def make_install(target: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run what `make install` or `make uninstall` runs once the checkout is set up."""
    return subprocess.run(
        [str(ROOT / "scripts" / "install.sh"), target],
        env={**os.environ, "PYTHON": sys.executable, **variables},
        capture_output=True,
        text=True,
        timeout=FAR_TOO_LATE_S * 4,
        check=False,
    )


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    done = build_wheel(ROOT, out)
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def client_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("client-wheel")
    done = build_wheel(ROOT / "client", out)
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel of every distribution."""
    out = tmp_path_factory.mktemp("wheels")
    build_wheels(out)
    return out


@pytest.fixture(scope="session")
def runtime_alone(
    wheel: Path, client_wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """The wheels of runtime and client, and nothing else."""
    made = make_environment(tmp_path_factory.mktemp("alone"))
    made.install("--no-deps", "--no-index", str(wheel), str(client_wheel))
    return made


@pytest.fixture(scope="session")
def with_server(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """All wheels and the requirements of the server: those of this environment, or in full size the
    locked ones, as `make install` puts them into a PREFIX.
    """
    if not LONG:
        made = make_environment(tmp_path_factory.mktemp("server"))
        made.install("--no-deps", "--no-index", *map(str, wheels.glob("*.whl")))
        # Its packages alone: files that lead to this checkout are read in the first place only.
        (made.site / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
        return made
    prefix = tmp_path_factory.mktemp("prefix")
    few = {"EXTRAS": "server", "WHEEL": str(wheels), "COMPILE": "no"}
    done = make_install("install", PREFIX=str(prefix), **few)
    assert done.returncode == 0, done.stderr
    return Environment(prefix, "lib/sandkasten")
