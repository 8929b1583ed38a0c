"""Processes by pid, start time and boot: neither a reused pid nor a zombie counts as alive."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from sandkasten.disk.process_identity import (
    ProcessIdentity,
    boot_id,
    is_gone,
    start_time,
    this_process,
)
from sandkasten_runtime.linux import processes


def test_this_process_is_alive():
    me = this_process()
    assert me.pid == os.getpid()
    assert me.boot_id == boot_id() != ""
    assert not is_gone(me)


def test_process_of_another_start_or_another_boot_is_gone():
    me = this_process()
    assert is_gone(replace(me, start=me.start - 1))
    assert is_gone(replace(me, boot_id="another"))


def test_zombie_is_gone():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        started = start_time(child.pid)
        assert started is not None
        process = ProcessIdentity(child.pid, started, boot_id())
        assert not is_gone(process)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert start_time(child.pid) is None
        assert is_gone(process)
        assert processes.pin(child.pid, started) is None
