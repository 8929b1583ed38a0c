"""The contents of the wheel, and what its installation provides."""

from __future__ import annotations

import platform
import shutil
import stat
import struct
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

from tests import environments
from tests.packaging.conftest import ROOT, build_wheel, make_environment
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from pathlib import Path

# The first of them builds the wheel and installs it with all it requires.
pytestmark = pytest.mark.timeout(600)
INFO = "sandkasten_runtime-0.1.0.dist-info"
DATA = "sandkasten_runtime-0.1.0.data"
COMMAND_FILE = f"{DATA}/scripts/sandkasten"
BINARIES = {
    "sandkasten_runtime/_bin/sandkasten-runner",
    "sandkasten_runtime/_bin/sandkasten-egress",
    "sandkasten_runtime/_bin/sandkasten-gate",
    "sandkasten_runtime/_bin/sandkasten-launch",
    "sandkasten_runtime/_bin/sandkasten-unpack",
}


def test_the_wheel_holds_every_binary_and_each_is_executable(wheel):
    with zipfile.ZipFile(wheel) as archive:
        modes = {i.filename: i.external_attr >> 16 for i in archive.infolist()}
    assert {name for name in modes if "/_bin/" in name} == BINARIES
    assert [name for name in (*BINARIES, COMMAND_FILE) if not modes[name] & stat.S_IXOTH] == []


def test_the_wheel_is_tagged_for_the_machine_of_its_binaries(wheel):
    assert f"manylinux_2_17_{platform.machine()}" in wheel.name
    assert f"musllinux_1_1_{platform.machine()}" in wheel.name
    assert wheel.name.startswith("sandkasten_runtime-0.1.0-py3-none-")


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {"sandkasten_runtime", INFO, DATA}
    assert [name for name in names if name.startswith(DATA)] == [COMMAND_FILE]
    assert "sandkasten_runtime/py.typed" in names
    assert [name for name in names if "__pycache__" in name] == []


def test_the_distribution_and_the_import_have_different_names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = Parser().parsestr(archive.read(f"{INFO}/METADATA").decode())
        command = archive.read(COMMAND_FILE)
    assert metadata["Name"] == "sandkasten-runtime"
    assert command.startswith(b"\x7fELF")


def test_the_runtime_requires_the_client_and_three_libraries(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = Parser().parsestr(archive.read(f"{INFO}/METADATA").decode())
    required = {
        Requirement(need)
        for need in metadata.get_all("Requires-Dist", [])
        if "extra ==" not in need
    }
    assert {need.name for need in required} == {
        "aiohttp",
        "pyseccomp",
        "pyyaml",
        "sandkasten-client",
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert required == {Requirement(need) for need in project["dependencies"]}
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


def test_without_the_server_extra_the_command_names_the_extra_to_install(runtime_alone):
    done = runtime_alone.run("sandkasten", "run", "-c", "print(6*7)")
    assert done.returncode != 0
    assert "pip install 'sandkasten-runtime[server]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2


def test_the_hint_keeps_the_installed_version_and_adds_only_the_extra(runtime_alone):
    # No index is reachable: the name alone must be satisfied by what is installed.
    done = runtime_alone.pip("install", "--dry-run", "--no-index", "sandkasten-runtime[docker]")
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


COMMAND = "from sandkasten.command_line import main; main(['version'])"


@pytest.mark.parametrize("code", ["from sandkasten import Sandbox", COMMAND])
def test_the_other_project_installed_over_ours_is_explained(client_wheel, tmp_path, code):
    site = _unpacked(client_wheel, tmp_path)
    _add_other_project(site)
    done = _python(site, code)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        1,
        "ImportError: the distribution sandkasten 0.3.0, another project with the same import "
        "name, is installed; the two replace each other's files (hint: pip uninstall sandkasten "
        "sandkasten-client, then install sandkasten-client again)",
    )


def test_our_files_without_their_package_file_are_explained(client_wheel, tmp_path):
    # `pip uninstall sandkasten` removes the files that both projects have.
    site = _unpacked(client_wheel, tmp_path)
    missing = site / "sandkasten" / "__init__.py"
    missing.unlink()
    done = _python(site, COMMAND)
    assert (done.returncode, done.stderr.splitlines()) == (
        125,
        [
            f"error: the installation of sandkasten-client is incomplete: {missing} is missing",
            "hint: pip install --force-reinstall --no-deps sandkasten-client",
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


def test_without_binaries_the_wheel_is_pure_and_its_command_is_a_script(tmp_path, client_wheel):
    source = _copy_without_binaries(tmp_path)
    done = build_wheel(source, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    (built,) = (tmp_path / "out").iterdir()
    assert built.name == "sandkasten_runtime-0.1.0-py3-none-any.whl"
    environment = make_environment(tmp_path / "pure")
    environment.install("--no-deps", "--no-index", str(built), str(client_wheel))
    done = environment.run("sandkasten", "version")
    assert (done.returncode, done.stdout, done.stderr) == (
        125,
        "",
        "error: the command line is not installed\n"
        "hint: pip install 'sandkasten-runtime[server]'\n",
    )
    before = {"sandkasten"} | {path.name for path in environment.python.parent.iterdir()}
    assert environment.pip("uninstall", "--yes", "sandkasten-runtime").returncode == 0
    assert {path.name for path in environment.python.parent.iterdir()} == before - {"sandkasten"}


def test_the_command_is_the_program_and_goes_with_its_wheel(runtime_alone):
    assert runtime_alone.python.with_name("sandkasten").read_bytes()[:4] == b"\x7fELF"
    assert not runtime_alone.python.with_name("sandkasten-cli").exists()


def test_the_program_alone_makes_no_wheel(tmp_path):
    source = _copy_without_binaries(tmp_path)
    _fake_binary(source / "src" / "sandkasten_runtime" / "_bin" / "sandkasten", 62)
    done = build_wheel(source, tmp_path / "out")
    assert (done.returncode != 0, "holds only" in done.stderr) == (True, True)


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
        _fake_binary(source / "src" / "sandkasten_runtime" / "_bin" / name, machine)
    done = build_wheel(source, tmp_path / "out")
    assert done.returncode != 0
    assert complaint in done.stderr
