"""A name server on loopback whose answers a test chooses."""

from __future__ import annotations

import ipaddress
import socketserver
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

A, AAAA = 1, 28


class NameServer(socketserver.UDPServer):
    """Asks `answer(name, kind)` for the addresses of each question, and keeps the questions.

    None: the name does not exist.
    """

    def __init__(self, answer: Callable[[str, int], list[str] | None]) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.answer = answer
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Answering(socketserver.BaseRequestHandler):
    server: NameServer

    def handle(self) -> None:
        data, sock = self.request
        labels, at = [], 12
        while data[at]:
            labels.append(data[at + 1 : at + 1 + data[at]].decode())
            at += 1 + data[at]
        name = ".".join(labels)
        (kind,) = struct.unpack(">H", data[at + 1 : at + 3])
        self.server.asked.append(name)
        known = self.server.answer(name, kind)
        found = [ipaddress.ip_address(one) for one in known or ()]
        answers = b"".join(
            b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 0, len(one.packed)) + one.packed
            for one in found
        )
        code = b"\x83" if known is None else b"\x80"
        head = data[:2] + b"\x81" + code + struct.pack(">HHHH", 1, len(found), 0, 0)
        sock.sendto(head + data[12 : at + 5] + answers, self.client_address)
