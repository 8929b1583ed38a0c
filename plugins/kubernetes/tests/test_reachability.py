"""`sandkasten-gate --reach`, by which a Pod finds out whether its network is closed."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest

from sandkasten_runtime.linux.programs import Programs
from tests.patience import PATIENCE_S

# A host whose router knows no way to the address, and says so.
_REJECTED = """
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
unshare --net sleep 600 &
host=$!
until [ "$(readlink /proc/$host/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do :; done
ip link add router0 type veth peer name host0 netns $host
ip addr add 10.99.1.1/24 dev router0
ip link set router0 up
nsenter -t $host -n sh -ec '
    ip addr add 10.99.1.2/24 dev host0
    ip link set host0 up
    ip route add default via 10.99.1.1
    "$0" --reach "$1"
' "$1" "$2"
kill $host
"""


def _said(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    return done.stdout


@pytest.mark.promise("P107")
@pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces, which needs root")
def test_a_rejected_connection_is_closed():
    program = str(Programs.found(None, None).gate)
    output = _said("unshare", "--net", "sh", "-c", _REJECTED, "sh", program, "10.99.2.1:443")
    assert output == "closed 10.99.2.1:443\n"


@pytest.mark.promise("P107")
def test_an_address_that_answers_is_open():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert _said(str(Programs.found(None, None).gate), "--reach", address) == (
            f"open {address}\n"
        )
