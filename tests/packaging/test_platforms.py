"""On macOS and Windows the client imports and works; the embedded engine gives the reason.

Both are simulated in a new process: the name of the platform is changed and the modules it lacks
are removed, after the standard library modules that depend on the platform have been loaded.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.shared_sandbox_cases import few

LACKING = {
    "darwin": ["pyseccomp", "seccomp"],
    "win32": ["pyseccomp", "fcntl", "grp", "pwd", "pty", "resource", "termios", "tty", "syslog"],
}

PLAY = """
import asyncio, ctypes, multiprocessing, pathlib, shutil, signal, socket, subprocess, tempfile
import concurrent.futures, importlib.metadata, random, sys, tarfile, threading, zipfile
for name in {lacking!r}:
    sys.modules[name] = None
for name in [n for n in sys.modules if n.split(".")[0] == "sandkasten"]:
    del sys.modules[name]
sys.platform = {platform!r}
import sandkasten
"""


def _play(platform: str, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PLAY.format(platform=platform, lacking=LACKING[platform]) + code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_every_public_name_is_importable(platform):
    done = _play(platform, "print([n for n in sandkasten.__all__ if not getattr(sandkasten, n)])")
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.parametrize("platform", few(["darwin", "win32"], 2))
@pytest.mark.parametrize(
    "attempt",
    [
        "sandkasten.Sandbox()",
        "sandkasten.run('print(6*7)')",
        "asyncio.run(sandkasten.AsyncSandbox().begin())",
    ],
)
def test_the_embedded_engine_gives_its_reason_in_one_sentence(platform, attempt):
    done = _play(
        platform,
        f"try:\n    {attempt}\nexcept sandkasten.BackendUnavailable as exc:\n    print(exc)\n",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert "Linux" in done.stdout
    assert platform in done.stdout


def test_the_simulated_platform_lacks_its_modules():
    done = _play("win32", "import fcntl")
    assert done.returncode != 0
    assert "ModuleNotFoundError" in done.stderr
