"""Programs of the host that are started without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest

from sandkasten.disk.child_process import start_child

ENV = {"PATH": "/usr/bin:/bin"}


async def test_its_named_streams_are_ours_and_the_others_are_empty(tmp_path):
    script = "read line; echo got $line in $PWD; echo lost >&2; exit 3"
    child = await start_child(
        ("sh", "-c", script), streams=("stdin", "stdout"), env=ENV, cwd=tmp_path
    )
    child.writer.write(b"hello\n")
    assert await child.reader.read() == f"got hello in {tmp_path}\n".encode()
    assert await child.wait() == 3
    await child.aclose()


async def test_a_program_is_never_started_on_the_event_loop(monkeypatch):
    threads = []

    class Recorded(subprocess.Popen):
        def __init__(self, *args, **options):
            threads.append(threading.get_ident())
            super().__init__(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    child = await start_child(("true",), streams=("stdout",), env=ENV)
    assert await child.wait() == 0
    await child.aclose()
    assert threads
    assert threading.get_ident() not in threads


async def test_what_is_closed_is_gone():
    child = await start_child(("sleep", "1000"), streams=("stdin",), env=ENV)
    assert child.returncode is None
    await child.aclose()
    assert child.returncode == -signal.SIGKILL


async def test_a_missing_program_is_an_os_error_and_leaves_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        await start_child(("/no/such/program",), streams=("stdout",), env=ENV)
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_cancelled_start_leaves_no_process(monkeypatch):
    begun, go = threading.Event(), threading.Event()
    started = []

    class Slow(subprocess.Popen):
        def __init__(self, *args, **options):
            begun.set()
            go.wait(60)
            super().__init__(*args, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Slow)
    starting = asyncio.create_task(
        start_child((sys.executable, "-c", "input()"), streams=("stdin",), env=ENV)
    )
    await asyncio.to_thread(begun.wait, 60)
    starting.cancel()
    await asyncio.sleep(0)
    starting.cancel()  # Twice: the caller of the caller gives up as well.
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert [one.returncode for one in started] == [-signal.SIGKILL]


async def test_a_start_that_is_cancelled_after_it_began_leaves_no_process(monkeypatch):
    started = []

    class Recorded(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            started.append(self)

    async def never(**_):
        await asyncio.Event().wait()

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    monkeypatch.setattr(asyncio, "open_connection", never)
    starting = asyncio.create_task(start_child(("sleep", "1000"), streams=("stdin",), env=ENV))
    while not started:  # noqa: ASYNC110 - a thread tells no event
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert [one.returncode for one in started] == [-signal.SIGKILL]
