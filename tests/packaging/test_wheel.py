"""The contents of the wheel, and what its installation provides."""

from __future__ import annotations

import platform
import shutil
import stat
import struct
import zipfile
from email.parser import Parser
from typing import TYPE_CHECKING

import pytest

from tests.packaging.conftest import ROOT, build_wheel

if TYPE_CHECKING:
    from pathlib import Path

# The first of them builds the wheel and installs it with all it requires.
pytestmark = pytest.mark.timeout(600)
BINARIES = {
    "sandkasten/_bin/sandkasten-runner",
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
    assert wheel.name.startswith("sandkasten-0.1.0-py3-none-")


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {"sandkasten", "sandkasten-0.1.0.dist-info"}
    assert "sandkasten/py.typed" in names
    assert [name for name in names if "__pycache__" in name] == []


def test_the_client_requires_only_an_http_library(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = Parser().parsestr(archive.read("sandkasten-0.1.0.dist-info/METADATA").decode())
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
    assert "[server]" in done.stderr
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
    assert "[server]" in done.stdout
    assert done.stdout.count("\n") == 1


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
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["sandkasten-0.1.0-py3-none-any.whl"]


def test_the_tag_follows_the_binaries_and_not_the_machine_that_packs(tmp_path):
    source = _copy_without_binaries(tmp_path)
    for name in BINARIES:
        _fake_binary(source / "src" / name, 183)
    done = build_wheel(source, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    (built,) = (tmp_path / "out").iterdir()
    assert "manylinux_2_17_aarch64" in built.name


@pytest.mark.parametrize(
    ("machines", "complaint"),
    [
        ({"sandkasten-runner": 62}, "holds only"),
        ({"sandkasten-runner": 62, "sandkasten-launch": 62}, "holds only"),
        (
            {"sandkasten-runner": 62, "sandkasten-launch": 183, "sandkasten-unpack": 62},
            "different machines",
        ),
        (
            {"sandkasten-runner": 8, "sandkasten-launch": 8, "sandkasten-unpack": 8},
            "no wheel tag",
        ),
    ],
)
def test_an_incomplete_runner_build_creates_no_wheel(tmp_path, machines, complaint):
    source = _copy_without_binaries(tmp_path)
    for name, machine in machines.items():
        _fake_binary(source / "src" / "sandkasten" / "_bin" / name, machine)
    done = build_wheel(source, tmp_path / "out")
    assert done.returncode != 0
    assert complaint in done.stderr
