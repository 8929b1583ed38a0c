"""A fork in place of a new interpreter (tests/forked_programs.py) gets what a real one gets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests import forked_programs
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    not forked_programs.SUPPORTED, reason="every start here is a real one"
)
PROBE = [sys.executable, "-m", "tests.cli.start_probe"]


def _both(*words: str, **options: Any) -> list[subprocess.CompletedProcess[bytes]]:
    """Run the probe as a fork and as a new interpreter."""
    _until_ready()
    done = []
    for real in (False, True):
        forked_programs.only_real(real)
        before = forked_programs.started()
        done.append(
            subprocess.run(
                [*PROBE, *words], capture_output=True, timeout=PATIENCE_S, check=False, **options
            )
        )
        assert forked_programs.started() - before == (0 if real else 1)
    return done


def _until_ready() -> None:
    assert forked_programs.start(PATIENCE_S)


def _told(done: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    assert (done.returncode, done.stderr) == (0, b"")
    found: dict[str, Any] = json.loads(done.stdout)
    for file in found["files"].values():
        file[0] = file[0].partition(":[")[0]  # Each has its own pipes.
    return found


def test_a_fork_finds_what_a_new_interpreter_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    environ = {**os.environ, "ODD": "ünï\udcff=\n", "PATH": "/nowhere"}
    before = os.umask(0o027)
    passed = os.open("/dev/null", os.O_RDONLY)
    try:
        fork, real = _both(
            "a b", "--x", "", cwd=tmp_path, env=environ, input=b"given", pass_fds=[passed]
        )
    finally:
        os.umask(before)
        os.close(passed)
    assert _told(fork) == _told(real)
    assert _told(fork)["parent"] == os.getpid()
    assert _told(fork)["stdin"] == "given"


def test_a_fork_can_have_its_own_session():
    fork, real = _both(start_new_session=True, stdin=subprocess.DEVNULL, env={**os.environ})
    assert _told(fork) == _told(real)
    assert _told(fork)["session"] == "own"


@pytest.mark.parametrize(
    "words", [["exit", "0"], ["exit", "7"], ["exit", "300"], ["say"], ["late"], ["abort"]], ids=str
)
def test_a_fork_ends_as_a_new_interpreter_ends(words):
    fork, real = _both(*words)
    assert (fork.returncode, fork.stdout, fork.stderr) == (
        real.returncode, real.stdout, real.stderr,
    )  # fmt: skip


@pytest.mark.parametrize("words", [["fail"], ["interrupt"]], ids=str)
def test_an_exception_ends_a_fork_as_it_ends_a_new_interpreter(words):
    fork, real = _both(*words)
    assert (fork.returncode, fork.stdout) == (real.returncode, real.stdout)
    assert fork.stderr.splitlines()[-1] == real.stderr.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_a_signal_ends_a_fork_as_it_ends_a_new_interpreter(number):
    _until_ready()
    for real in (False, True):
        forked_programs.only_real(real)
        with subprocess.Popen([*PROBE, "wait"], stdout=-1, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            process.send_signal(number)
            assert process.wait(PATIENCE_S) == -number


def test_a_closed_stdout_is_the_same_failure():
    _until_ready()
    seen = []
    for real in (False, True):
        forked_programs.only_real(real)
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run([*PROBE], stdin=subprocess.DEVNULL, stdout=write, stderr=-1)
        os.close(write)
        seen.append((done.returncode, b"BrokenPipeError" in done.stderr))
    assert seen[0] == seen[1]


def test_another_locale_or_option_of_the_interpreter_is_a_real_start():
    _until_ready()
    before = forked_programs.started()
    for name, value in (("PYTHONUTF8", "0"), ("LC_ALL", "C"), ("PYTHONPATH", "/nowhere")):
        subprocess.run([*PROBE, "exit", "0"], env={**os.environ, name: value}, check=False)
    subprocess.run([sys.executable, "-I", "-m", "sandkasten_server.cli", "--version"], check=True)
    subprocess.run([*PROBE, "exit", "0"], check=True, preexec_fn=lambda: None)
    assert forked_programs.started() == before


def test_a_script_ends_with_its_objects_and_sees_warnings_as_errors():
    _until_ready()
    code = """
import sandkasten, sys, warnings
class Kept:
    def __del__(self):
        sys.stdout.write("finalized\\n")
kept = Kept()
kept.itself = kept
print(__name__, sys.argv, sys.path[0] == "", sys.warnoptions, flush=True)
warnings.warn("now")
"""
    seen = []
    for real in (False, True):
        forked_programs.only_real(real)
        before = forked_programs.started()
        words = [sys.executable, "-W", "error", "-c", code, "a", "b"]
        done = subprocess.run(words, capture_output=True, timeout=PATIENCE_S, check=False)
        assert forked_programs.started() - before == (0 if real else 1)
        assert b"ResourceWarning" not in done.stderr
        seen.append((done.returncode, done.stdout, done.stderr.splitlines()[-1]))
    assert seen[0] == seen[1]
    assert seen[0][0] == 1
    assert seen[0][1].endswith(b"finalized\n")


@pytest.mark.real_start
def test_the_mark_has_every_start_be_a_real_one():
    before = forked_programs.started()
    subprocess.run([*PROBE, "exit", "0"], check=True)
    assert forked_programs.started() == before
