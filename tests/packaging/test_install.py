"""`make install` into a PREFIX: a command that works, a unit that starts, and its removal."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.packaging.conftest import ROOT, Environment, make_install
from tests.patience import FAR_TOO_LATE_S

if TYPE_CHECKING:
    from pathlib import Path

# The first of them installs all requirements.
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.long(reason="it installs all requirements; `make test` installs the wheel"),
]
UNIT = "lib/systemd/system/sandkasten.service"


def _commands(target: str) -> str:
    words = ["make", "--dry-run", "--no-print-directory", target]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_make_knows_both_targets():
    assert _commands("install").splitlines()[-1] == "scripts/install.sh install"
    assert _commands("uninstall") == "scripts/install.sh uninstall\n"


def test_the_link_in_bin_runs_the_command(with_server: Environment):
    command = with_server.folder / "bin" / "sandkasten"
    assert os.readlink(command) == "../lib/sandkasten/bin/sandkasten"
    done = subprocess.run([command, "version"], capture_output=True, text=True, check=True)
    assert done.stdout == "sandkasten 0.1.0\n"


def test_no_program_names_the_place_where_it_was_made(with_server: Environment):
    home = with_server.folder / "lib" / "sandkasten"
    programs = [path for path in (home / "bin").iterdir() if not path.is_symlink()]
    files = [*programs, home / "pyvenv.cfg"]
    named = [path for path in files if b".sandkasten.new" in path.read_bytes()]
    assert named == []


def test_systemd_accepts_the_unit(with_server: Environment):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    unit = with_server.folder / UNIT
    words = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    told = [line for line in done.stderr.splitlines() if "sandkasten" in line]
    assert (done.returncode, told) == (0, [])


def test_the_command_of_the_unit_starts_a_daemon(with_server: Environment, tmp_path: Path):
    unit = (with_server.folder / UNIT).read_text()
    (line,) = [one for one in unit.splitlines() if one.startswith("ExecStart=")]
    words = shlex.split(line.removeprefix("ExecStart="))
    assert words == [
        f"{with_server.folder}/bin/sandkasten",
        *("serve", "--config", "/etc/sandkasten/sandkasten.yaml"),
    ]
    # The settings as the guide makes them, but not in /etc.
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "SANDKASTEN_LISTEN": "127.0.0.1:0"}
    subprocess.run([words[0], "init"], cwd=tmp_path, env=environment, check=True)
    words[-1] = str(tmp_path / "sandkasten.yaml")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(tmp_path / "notify"))
        notified.settimeout(FAR_TOO_LATE_S)
        environment |= {
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "SANDKASTEN_DATA_DIR": str(tmp_path / "data"),
        }
        daemon = subprocess.Popen(words, cwd="/", env=environment, stderr=subprocess.PIPE)
        try:
            assert b"READY=1" in notified.recv(4096)
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.communicate(timeout=FAR_TOO_LATE_S)
    assert daemon.returncode == 0


def test_the_manual_has_a_section_for_each_command(with_server: Environment):
    page = (with_server.folder / "share/man/man1/sandkasten.1").read_text()
    assert page.startswith(".TH SANDKASTEN 1 ")
    assert {".SH SANDKASTEN RUN", ".SH SANDKASTEN IMAGE BUILD"} <= set(page.splitlines())
    if shutil.which("groff"):
        words = ["groff", "-man", "-Tutf8"]
        done = subprocess.run(words, input=page.encode(), capture_output=True, check=True)
        assert done.stderr == b""


def test_uninstall_removes_what_install_made(with_server: Environment, tmp_path: Path):
    prefix = tmp_path / "prefix"
    subprocess.run(["cp", "-al", str(with_server.folder), str(prefix)], check=True)
    for theirs in ("elsewhere", "data"):
        shutil.rmtree(prefix / theirs, ignore_errors=True)
    (prefix / "bin" / "other").touch()
    done = make_install("uninstall", PREFIX=str(prefix))
    assert done.returncode == 0, done.stderr
    left = [str(path.relative_to(prefix)) for path in prefix.rglob("*") if not path.is_dir()]
    assert left == ["bin/other"]


def test_uninstall_without_an_installation_says_so(tmp_path: Path):
    done = make_install("uninstall", PREFIX=str(tmp_path))
    assert (done.returncode, done.stderr.splitlines()) == (
        1,
        [
            f"nothing was installed by make install below {tmp_path}",
            "hint: set PREFIX as it was set then",
        ],
    )


def test_a_foreign_directory_is_not_replaced(tmp_path: Path):
    (tmp_path / "lib" / "sandkasten").mkdir(parents=True)
    (tmp_path / "lib" / "sandkasten" / "precious").touch()
    done = make_install("install", PREFIX=str(tmp_path))
    assert done.returncode == 1
    assert "was not made by make install" in done.stderr
    assert (tmp_path / "lib" / "sandkasten" / "precious").exists()


@pytest.mark.long(reason="it installs all requirements; `make test` installs the wheel")
def test_destdir_gets_every_part_and_is_in_no_installed_file(tmp_path: Path):
    done = make_install("install", DESTDIR=str(tmp_path), PREFIX="/usr")
    assert done.returncode == 0, done.stderr
    made = Environment(tmp_path, "usr/lib/sandkasten")
    code = """
import aiodocker, cel, dotpromptz, mcp, uvicorn
print(aiodocker.Docker.close.__code__.co_filename.partition("/lib/python")[0])
"""
    assert made.run("python", "-c", code).stdout == "/usr/lib/sandkasten\n"
    command = tmp_path / "usr/lib/sandkasten/bin/sandkasten-cli"
    assert command.read_text().splitlines()[0] == "#!/usr/lib/sandkasten/bin/python3"
    unit = (tmp_path / "usr" / UNIT).read_text()
    assert "ExecStart=/usr/bin/sandkasten serve" in unit
    assert str(tmp_path) not in unit
