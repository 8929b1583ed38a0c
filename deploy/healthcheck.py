"""Check that the daemon of this container is alive; exit with 0 if it is.

Uses the Unix socket, which does not depend on the daemon's address, port or certificate. Imports
only the standard library, because it runs every few seconds and must cost little.
"""

import http.client
import os
import socket
import sys

PATH = os.environ.get("SANDKASTEN_SOCKET") or os.path.join(
    os.environ.get("SANDKASTEN_DATA_DIR") or "/var/lib/sandkasten", "daemon.sock"
)
TIMEOUT_S = 4.0  # below the timeout of the HEALTHCHECK, so that the reason is printed


class Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(PATH)


def main() -> int:
    connection = Connection("localhost", timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        body = answer.read(1000).decode(errors="replace")
    except (OSError, http.client.HTTPException) as exc:
        sys.stdout.write(f"{PATH}: {exc}\n")
        return 1
    sys.stdout.write(f"{answer.status} {body}\n")
    return 0 if answer.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
