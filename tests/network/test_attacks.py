"""What a hostile program tries: it gets nowhere, and only its own network can suffer."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.root

_BY_ROUTE = """
import http.server, subprocess, threading
from sandkasten import Sandbox

for words in ("link set lo up", "route add local 93.184.216.0/24 dev lo"):
    subprocess.run(["ip", *words.split()], check=True)
server = http.server.ThreadingHTTPServer(("93.184.216.7", 0), http.server.BaseHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
port = server.server_port
with Sandbox(network={"allow": [f"93.184.216.7:{port}"]}) as box:
    print(box.exec(["curl", "-sS", "-m", "10", f"http://93.184.216.7:{port}/"]).output)
    print([(one.event, one.rule) for one in box.network_log()])
"""


def test_an_address_that_only_a_route_makes_local_is_the_hosts_own(tmp_path: Path):
    """In a network namespace of its own, so that the routes of this machine stay as they are."""
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", _BY_ROUTE],
        env={**os.environ, "SANDKASTEN_DATA_DIR": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "may not reach" in done.stdout, done
    assert "[('refused', 'address that is not public')]" in done.stdout
