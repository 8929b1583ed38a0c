"""Descriptors closed in the background are closed, also without a thread."""

from __future__ import annotations

import os
import threading
import time

from sandkasten_runtime.linux import sandbox_removal
from tests.patience import PATIENCE_S


def _closed(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False


def test_a_descriptor_is_closed_in_the_background_after_its_last_use():
    read, write = os.pipe()

    def mark(descriptor: int) -> None:
        os.write(descriptor, b"x")

    sandbox_removal.close_later(write, after=mark)
    deadline = time.monotonic() + PATIENCE_S
    while not _closed(write):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert os.read(read, 2) == b"x"
    os.close(read)


def test_without_a_thread_a_descriptor_is_closed_at_once(monkeypatch):
    def no_thread(self) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(sandbox_removal, "_closing_process", 0)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    read, write = os.pipe()
    sandbox_removal.close_later(write)
    sandbox_removal.close_later(None)
    assert _closed(write)
    os.close(read)
