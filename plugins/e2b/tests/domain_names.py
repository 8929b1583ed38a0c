"""Names of a domain that lead to one loopback address, for the programs of one test alone.

A program runs in a mount namespace of its own, where /etc/resolv.conf names a resolver that knows
only this domain. Nothing else of the machine sees it.
"""

from __future__ import annotations

import random
import socket
import struct
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOMAIN = "example.test"
_A_RECORD, _IN = 1, 1
# argv: the file that replaces /etc/resolv.conf, then the program.
_INSIDE = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'


@dataclass(frozen=True, slots=True)
class Names:
    address: str
    """A loopback address that no other test uses; the names of the domain lead to it."""
    resolver_file: Path

    def run(
        self, words: list[str], env: dict[str, str], cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        inside = ["unshare", "-m", "sh", "-c", _INSIDE, str(self.resolver_file), *words]
        return subprocess.run(
            inside, env=env, cwd=cwd, capture_output=True, text=True, timeout=110, check=False
        )


@contextmanager
def names_of_the_domain(place: Path) -> Iterator[Names]:
    # Both ports of it are free: no other program of this machine listens on such an address.
    address = ".".join(("127", *(str(random.randrange(1, 255)) for _ in range(3))))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((address, 53))
        thread = threading.Thread(target=_answer, args=(sock, address))
        thread.start()
        file = place / "resolv.conf"
        file.write_text(f"nameserver {address}\noptions timeout:30\n")
        try:
            yield Names(address, file)
        finally:
            # An empty question ends it.
            sock.sendto(b"", (address, 53))
            thread.join()


def _answer(sock: socket.socket, address: str) -> None:
    while True:
        asked, sender = sock.recvfrom(512)
        if not asked:
            return
        name, end = _name(asked)
        kind = struct.unpack(">H", asked[end : end + 2])[0]
        known = name == DOMAIN or name.endswith(f".{DOMAIN}")
        found = known and kind == _A_RECORD
        flags = 0x8180 if known else 0x8183
        head = asked[:2] + struct.pack(">HHHHH", flags, 1, int(found), 0, 0)
        record = struct.pack(">HHHIH", 0xC00C, _A_RECORD, _IN, 60, 4) + socket.inet_aton(address)
        sock.sendto(head + asked[12 : end + 4] + (record if found else b""), sender)


def _name(asked: bytes) -> tuple[str, int]:
    """Return the name in a question, and where its type begins."""
    labels, at = [], 12
    while asked[at]:
        labels.append(asked[at + 1 : at + 1 + asked[at]].decode("ascii"))
        at += 1 + asked[at]
    return ".".join(labels).lower(), at + 1
