"""An interactive terminal: vim in a sandbox, through the command line and the daemon, in tmux."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
import time
from contextlib import suppress

import aiohttp
import pytest

from tests.daemon.process import ask, running
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.promise("P38")


class Tmux:
    def __init__(self, socket: str) -> None:
        self._socket = socket

    async def __call__(self, *words: str) -> str:
        command = ["tmux", "-S", self._socket, "-f", "/dev/null", *words]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def until(self, text: str) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            screen = await self("capture-pane", "-p")
            if text in screen:
                return screen
            assert time.monotonic() < deadline, f"no {text!r} on the screen:\n{screen}"
            await asyncio.sleep(0.1)

    async def type(self, *keys: str) -> None:
        await self("send-keys", *keys)


@pytest.fixture
async def tmux(tmp_path):
    # A socket's path may not be long.
    path = f"/tmp/sandkasten-tmux-{os.getpid()}"
    one = Tmux(path)
    yield one
    await asyncio.to_thread(
        subprocess.run, ["tmux", "-S", path, "kill-server"], capture_output=True, check=False
    )
    with suppress(FileNotFoundError):
        os.unlink(path)


@pytest.mark.timeout(300)
async def test_vim_survives_a_resize_and_a_killed_daemon(tmp_path, tmux):
    data_dir = tmp_path / "data"
    async with running(data_dir) as daemon, aiohttp.ClientSession() as http:
        _, made = await ask(http, "POST", daemon.url + "/v1/sessions", {})
        cli = shlex.join(
            [sys.executable, "-m", "sandkasten_server.cli", "--data-dir", str(data_dir)]
        )
        await tmux("new-session", "-d", "-x", "90", "-y", "30", f"{cli} shell {made['id']}; cat")
        await tmux.until("$")
        await tmux.type("stty size; vim.tiny -u NONE poem.txt", "Enter")
        await tmux.until("poem.txt")
        await tmux.type("i", "first line", "Enter")
        await tmux.until("first line")
        await tmux("resize-window", "-x", "60", "-y", "20")
        await tmux.type("second line")
        await tmux.until("second line")
        await daemon.kill()
        await daemon.start()
        await tmux.type(" after the storm", "Escape", ":set lines? columns?", "Enter")
        screen = await tmux.until("columns=60")
        assert "lines=20" in screen
        await tmux.type("Enter")
        await tmux.type(":wq", "Enter")
        # What is typed before the shell is back goes to vim, or nowhere.
        await tmux.until("$")
        await tmux.type("cat poem.txt; exit 3", "Enter")
        await tmux.until("after the storm")
        url = f"{daemon.url}/v1/sessions/{made['id']}/fs/read?path=poem.txt"
        _, poem = await ask(http, "GET", url)
        assert poem["content"] == "first line\nsecond line after the storm\n"
