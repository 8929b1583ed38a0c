"""The contents of the wheel, and what its installation provides."""

from __future__ import annotations

import platform
import shutil
import stat
import struct
import subprocess
import sys
import zipfile
from email.parser import Parser
from typing import TYPE_CHECKING

import pytest

from tests import environments
from tests.packaging.conftest import ROOT, build_wheel
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from pathlib import Path

# The first of them builds the wheel and installs it with all it requires.
pytestmark = pytest.mark.timeout(600)
INFO = "sandkasten_runtime-0.1.0.dist-info"
BINARIES = {
    "sandkasten/_bin/sandkasten-runner",
    "sandkasten/_bin/sandkasten-egress",
    "sandkasten/_bin/sandkasten-launch",
    "sandkasten/_bin/sandkasten-unpack",
}


def test_the_wheel_holds_every_binary_and_each_is_executable(wheel):
    with zipfile.ZipFile(wheel) as archive:
        modes = {i.filename: i.external_attr >> 16 for i in archive.infolist()}
    assert {name for name in modes if "/_bin/" in name} == BINARIES
    assert [name for name in BINARIES if not modes[name] & stat.S_IXOTH] == []


def test_the_wheel_is_tagged_for_the_machine_of_its_binaries(wheel):
    assert f"manylinux_2_17_{platform.machine()}" in wheel.name
    assert f"musllinux_1_1_{platform.machine()}" in wheel.name
    assert wheel.name.startswith("sandkasten_runtime-0.1.0-py3-none-")


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {"sandkasten", INFO}
    assert "sandkasten/py.typed" in names
    assert [name for name in names if "__pycache__" in name] == []


def test_the_distribution_and_the_import_have_different_names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = Parser().parsestr(archive.read(f"{INFO}/METADATA").decode())
        scripts = archive.read(f"{INFO}/entry_points.txt").decode()
    assert metadata["Name"] == "sandkasten-runtime"
    assert scripts == (
        "[console_scripts]\nsandkasten = sandkasten.cli.main:main\n\n"
        "[inspect_ai]\nsandkasten = sandkasten.integrations.inspect_ai_environment\n"
    )


def test_the_client_requires_only_an_http_library(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = Parser().parsestr(archive.read(f"{INFO}/METADATA").decode())
    required = metadata.get_all("Requires-Dist", [])
    assert [need for need in required if "extra ==" not in need] == ["aiohttp<4,>=3.12"]
    assert metadata["Requires-Python"] == ">=3.11"


def test_an_installed_wheel_runs_code_in_a_sandbox(with_server):
    done = with_server.run("sandkasten", "run", "-c", "print(6*7)")
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr


def test_an_installed_wheel_runs_the_first_example_of_the_readme(with_server):
    done = with_server.run(
        "python",
        "-c",
        "from sandkasten import Sandbox\n"
        "with Sandbox() as box:\n"
        "    box.exec('cd /tmp && export A=1')\n"
        "    print(box.exec('echo $A; pwd').output, end='')\n",
    )
    assert (done.returncode, done.stdout) == (0, "1\n/tmp\n"), done.stderr


def test_without_the_server_extra_the_command_names_the_extra_to_install(client_alone):
    done = client_alone.run("sandkasten", "run", "-c", "print(6*7)")
    assert done.returncode != 0
    assert "pip install 'sandkasten-runtime[server]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2


def test_without_the_server_extra_a_sandbox_is_refused_in_one_sentence(client_alone):
    code = (
        "import sandkasten\n"
        "try:\n    sandkasten.Sandbox()\n"
        "except sandkasten.BackendUnavailable as exc:\n    print(exc)\n"
    )
    done = client_alone.run("python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert "pip install 'sandkasten-runtime[server]'" in done.stdout
    assert done.stdout.count("\n") == 1


def test_the_hint_keeps_the_installed_version_and_adds_only_the_extra(client_alone):
    # No index is reachable: the name alone must be satisfied by what is installed.
    done = client_alone.pip("install", "--dry-run", "--no-index", "sandkasten-runtime[docker]")
    assert "Requirement already satisfied: sandkasten-runtime[docker]" in done.stdout
    assert "No matching distribution found for aio" in done.stderr


def _unpacked(wheel: Path, site: Path) -> Path:
    """The files of our wheel where Python looks first."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def _add_other_project(site: Path) -> None:
    """Add the files of the package that has our import name on the public index."""
    (place,) = environments.compat().parents[1].glob("lib/python3*/site-packages")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("sandkasten", "sandkasten-0.3.0.dist-info"):
        shutil.copytree(place / name, site / name, dirs_exist_ok=True, ignore=ignored)
    # What its first import needs, so that only the clash can fail.
    (site / "httpx.py").touch()


def _python(site: Path, code: str) -> subprocess.CompletedProcess[str]:
    # Without the packages of this environment, which has our own among them.
    words = [sys.executable, "-S", "-c", code]
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(site)}
    return subprocess.run(
        words, cwd=site, env=environ, capture_output=True, text=True, timeout=60, check=False
    )


COMMAND = "from sandkasten.cli.main import main; main(['version'])"


@pytest.mark.parametrize("code", ["from sandkasten import Sandbox", COMMAND])
def test_the_other_project_installed_over_ours_is_explained(wheel, tmp_path, code):
    site = _unpacked(wheel, tmp_path)
    _add_other_project(site)
    done = _python(site, code)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        1,
        "ImportError: the distribution sandkasten 0.3.0, another project with the same import "
        "name, is installed; the two replace each other's files (hint: pip uninstall sandkasten "
        "sandkasten-runtime, then install sandkasten-runtime again)",
    )


def test_our_files_without_their_package_file_are_explained(wheel, tmp_path):
    # `pip uninstall sandkasten` removes the files that both projects have.
    site = _unpacked(wheel, tmp_path)
    missing = site / "sandkasten" / "__init__.py"
    missing.unlink()
    done = _python(site, COMMAND)
    assert (done.returncode, done.stderr.splitlines()) == (
        125,
        [
            f"error: the installation of sandkasten-runtime is incomplete: {missing} is missing",
            "hint: pip install --force-reinstall with the wheel of sandkasten-runtime",
        ],
    )


def _copy_without_binaries(folder: Path) -> Path:
    source = folder / "checkout"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    shutil.copytree(ROOT / "scripts", source / "scripts")
    ignored = shutil.ignore_patterns("_bin", "__pycache__")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    return source


def _fake_binary(path: Path, machine: int) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\x7fELF\x02\x01" + bytes(12) + struct.pack("<H", machine))


def test_without_binaries_the_wheel_is_pure(tmp_path):
    source = _copy_without_binaries(tmp_path)
    done = build_wheel(source, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert [p.name for p in (tmp_path / "out").iterdir()] == [
        "sandkasten_runtime-0.1.0-py3-none-any.whl"
    ]


def test_the_tag_follows_the_binaries_and_not_the_machine_that_packs(tmp_path):
    source = _copy_without_binaries(tmp_path)
    for name in BINARIES:
        _fake_binary(source / "src" / name, 183)
    done = build_wheel(source, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    (built,) = (tmp_path / "out").iterdir()
    assert "manylinux_2_17_aarch64" in built.name


_ALL = {name.rpartition("/")[2]: 62 for name in BINARIES}


@pytest.mark.parametrize(
    ("machines", "complaint"),
    few(
        [
            ({"sandkasten-runner": 62}, "holds only"),
            ({"sandkasten-runner": 62, "sandkasten-launch": 62}, "holds only"),
            (
                {**_ALL, "sandkasten-launch": 183},
                "different machines",
            ),
            (
                dict.fromkeys(_ALL, 8),
                "no wheel tag",
            ),
        ]
    ),
)
def test_an_incomplete_runner_build_creates_no_wheel(tmp_path, machines, complaint):
    source = _copy_without_binaries(tmp_path)
    for name, machine in machines.items():
        _fake_binary(source / "src" / "sandkasten" / "_bin" / name, machine)
    done = build_wheel(source, tmp_path / "out")
    assert done.returncode != 0
    assert complaint in done.stderr
