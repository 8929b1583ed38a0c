"""The file store of a process that is not a daemon."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from sandkasten.errors import Conflict
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_server.daemon import transient_file_store
from sandkasten_server.daemon.transient_file_store import TransientFileStore

HOLDER = """
import sys
from pathlib import Path
from sandkasten_server.daemon.data_dir_lock import only_daemon
with only_daemon(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_store_that_another_command_has_is_not_said_to_be_a_daemons(tmp_path, monkeypatch):
    monkeypatch.setattr(transient_file_store, "_PATIENCE_S", 0)
    store = TransientFileStore(load({"data_dir": str(tmp_path)}, {}, tmp_path))
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(Conflict, match="another process has the file store") as caught:
            asyncio.run(store.usage("default"))
        assert "daemon" not in caught.value.message
        assert "wait for its end" in caught.value.hint
    assert asyncio.run(store.usage("default")) == 0
