"""A port of the loopback for a program that is started later.

The kernel takes the ports of its own choice (`bind` to 0, and every connection) from one range. A
port of that range can be taken by another test before the program listens on it.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

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
