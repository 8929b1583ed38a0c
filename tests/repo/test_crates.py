"""The crates of the runner are locked, and the scripts choose a toolchain that can build them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from typing import TYPE_CHECKING

import pytest

from tests.repo import tree

if TYPE_CHECKING:
    from pathlib import Path

RUNNER = tree.ROOT / "runner"
LOCK = (RUNNER / "crates.lock").read_text()
CARGO = tomllib.loads((RUNNER / "Cargo.toml").read_text())


def test_the_lock_of_crates_has_versions_and_checksums_and_no_address():
    packages = {package["name"]: package for package in tomllib.loads(LOCK)["package"]}
    ours = packages.pop(CARGO["package"]["name"])
    assert ours["version"] == CARGO["package"]["version"]
    assert CARGO["dependencies"].keys() == set(ours["dependencies"])
    assert {name for name, package in packages.items() if "source" in package} == set()
    unchecked = {
        name
        for name, package in packages.items()
        if not re.fullmatch(r"[0-9a-f]{64}", package.get("checksum", ""))
    }
    assert unchecked == set()
    assert "://" not in LOCK


def test_a_lock_of_cargo_is_restored_from_ours(tmp_path: Path):
    programs = _toolchain(tmp_path / "tools", "1.85.0")
    _run("cargo.sh", tmp_path, programs, "build", "--release")
    restored = tomllib.loads((tmp_path / "target" / "manifest" / "Cargo.lock").read_text())
    sources = {
        package["name"]: package.pop("source")
        for package in restored["package"]
        if "source" in package
    }
    assert restored == tomllib.loads(LOCK)
    assert len(set(sources.values())) == 1
    assert sources.keys() == {p["name"] for p in restored["package"] if "checksum" in p}


def test_settings_of_the_user_do_not_reach_the_build_and_the_way_to_crates_does(tmp_path: Path):
    programs = _toolchain(tmp_path / "tools", "1.90.0")
    seen = _run(
        "cargo.sh",
        tmp_path,
        programs,
        "build",
        RUSTFLAGS="-Ctarget-cpu=native",
        RUSTC_WRAPPER="sccache",
        CARGO_BUILD_TARGET="wasm32-wasip1",
        CARGO_PROFILE_RELEASE_DEBUG="true",
        CARGO_BUILD_JOBS="1",
        CARGO_HOME=str(tmp_path / "home"),
        CARGO_HTTP_CAINFO="/etc/ssl/ca.pem",
    )
    assert seen["arguments"] == "build --locked"
    variables = ("RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_ENCODED_RUSTFLAGS")
    assert [seen[name] for name in variables] == ["", "", ""]
    assert seen["CARGO_BUILD_TARGET"] == "test-unknown-linux-gnu"
    assert seen.keys().isdisjoint({"RUSTFLAGS", "CARGO_PROFILE_RELEASE_DEBUG"})
    assert seen["CARGO_BUILD_JOBS"] == "1"
    assert seen["CARGO_HOME"] == str(tmp_path / "home")
    assert seen["CARGO_HTTP_CAINFO"] == "/etc/ssl/ca.pem"


@pytest.mark.parametrize(
    ("old", "new"), [("1.63.0", "1.85.0"), ("1.84.1", "1.96.0"), ("broken", "1.85.0-nightly")]
)
def test_the_first_toolchain_that_is_new_enough_is_used(tmp_path: Path, old: str, new: str):
    places = [_toolchain(tmp_path / "a", old), _toolchain(tmp_path / "b", new)]
    places.append(_toolchain(tmp_path / "c", "1.99.0"))
    chosen = _choice(tmp_path, [str(place) for place in places])
    assert (chosen.returncode, chosen.stdout, chosen.stderr) == (0, f"{places[1]}\n", "")


def test_a_cargo_without_its_compiler_is_passed_over(tmp_path: Path):
    alone = _toolchain(tmp_path / "alone", "1.90.0")
    (alone / "rustc").unlink()
    whole = _toolchain(tmp_path / "whole", "1.90.0")
    assert _choice(tmp_path, [str(alone), str(whole)]).stdout == f"{whole}\n"


def test_without_a_toolchain_the_message_says_what_to_install(tmp_path: Path):
    script = (RUNNER / "toolchain.sh").read_text()
    assert script.count("/usr/bin;") == 1
    folder = tmp_path / "runner"
    folder.mkdir()
    shutil.copy(RUNNER / "Cargo.toml", folder)
    # This machine may have one in /usr/bin.
    (folder / "toolchain.sh").write_text(script.replace(" /usr/bin;", ";"))
    (folder / "toolchain.sh").chmod(0o755)
    refused = _choice(tmp_path, [str(_toolchain(tmp_path / "old", "1.63.0"))], folder)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        "the runner requires cargo and rustc 1.85 or newer, and none is installed\n"
        "hint: install rustc-web and cargo-web (Debian 12), rustc and cargo (Debian 13), "
        "or rustup's stable toolchain\n"
    )


def _toolchain(directory: Path, version: str) -> Path:
    """Make programs that print this version; `cargo` also records how it was started."""
    directory.mkdir()
    compiler = (
        f'[ "$1" != -vV ] || {{ echo host: test-unknown-linux-gnu; exit; }}\necho rustc {version}'
    )
    record = 'env -0 >"$RECORD"; printf "arguments=%s\\0" "$*" >>"$RECORD"'
    cargo = f'[ "$1" != --version ] || {{ echo cargo {version}; exit; }}\n{record}'
    for name, script in (("rustc", compiler), ("cargo", cargo)):
        failing = "exit 1" if version == "broken" else script
        (directory / name).write_text(f"#!/bin/sh\n{failing}\n")
        (directory / name).chmod(0o755)
    return directory


# Where the shell and its tools are, and no toolchain of this machine.
def _path(directory: Path) -> str:
    tools = directory / "coreutils"
    if not tools.exists():
        tools.mkdir()
        for name in ("cut", "dirname", "head", "sed", "sh", "sort"):
            (tools / name).symlink_to(shutil.which(name) or f"/usr/bin/{name}")
    return str(tools)


def _choice(
    directory: Path, places: list[str], folder: Path = RUNNER
) -> subprocess.CompletedProcess[str]:
    path = ":".join([*places, _path(directory)])
    environment = {"PATH": path, "HOME": str(directory / "nobody")}
    return subprocess.run(
        [str(folder / "toolchain.sh")], env=environment, capture_output=True, text=True, check=False
    )


def _run(
    script: str, directory: Path, programs: Path, *arguments: str, **variables: str
) -> dict[str, str]:
    """Return the environment and the arguments with which a script starts cargo."""
    record = directory / "record"
    environment = {
        **variables,
        "PATH": f"{programs}:{os.defpath}",
        "HOME": str(directory),
        "CARGO_TARGET_DIR": str(directory / "target"),
        "RECORD": str(record),
    }
    subprocess.run([str(RUNNER / script), *arguments], env=environment, check=True)
    lines = record.read_text().split("\0")[:-1]
    return dict(line.split("=", 1) for line in lines)
