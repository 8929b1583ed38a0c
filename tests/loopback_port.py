"""A port of the loopback for a program that is started later.

The kernel takes the ports of its own choice (`bind` to 0, and every connection) from one range. A
port of that range can be taken by another test before the program listens on it.
"""

from __future__ import annotations

import random
import socket
import time
from pathlib import Path

from tests.patience import PATIENCE_S

_LOWEST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_random = random.SystemRandom()


def free_port() -> int:
    """Return a port on which nothing listens, and which the kernel gives to no one by itself."""
    first = int(_RANGE.read_text().split()[0])
    while True:
        port = _random.randrange(_LOWEST, first) if first > 2 * _LOWEST else 0
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])


def wait_until_listened_on(port: int) -> None:
    """Return when a program listens on a port, or after a while. Does not connect to it."""
    deadline = time.monotonic() + PATIENCE_S
    while not _is_listened_on(port) and time.monotonic() < deadline:
        time.sleep(0.01)


def _is_listened_on(port: int) -> bool:
    listening = "0A"
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == listening and int(fields[1].rpartition(":")[2], 16) == port:
                return True
    return False
