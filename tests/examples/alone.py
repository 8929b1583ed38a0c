"""A network namespace for a daemon on localhost:8080 and one program that uses it.

Run it below `unshare --net`, so that the port is free. argv: data directory, then the program.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

from tests.client.http.served import served

SIOCSIFFLAGS = 0x8914
IFF_UP = 1


def main() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    with served(
        Path(sys.argv[1]),
        "--listen",
        "127.0.0.1:8080",
        backend=os.environ["EXAMPLE_BACKEND"],
        SANDKASTEN_API_KEY="sk-sandbox-...",
        SANDKASTEN_IMAGES_ALIASES="sandbox-runtime:python=host",
    ):
        return subprocess.run(sys.argv[2:], check=False, timeout=90).returncode


if __name__ == "__main__":
    sys.exit(main())
