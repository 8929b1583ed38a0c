"""Run in a sandbox: tries every way to an address that its network must not reach.

Arguments: the address and port of a server over TCP and UDP, the same of one that may be reached,
and the address of the sandbox. Prints the name of each way that worked.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import socket
import struct
import sys

ALLOWED_S = 2.0
SIOCSIFFLAGS = 0x8914
CLONE_NEWNET = 0x40000000
MSG_FASTOPEN = 0x20000000
LOOSE_SOURCE_ROUTE = 131

host, port = sys.argv[1], int(sys.argv[2])
public, public_port = sys.argv[3], int(sys.argv[4])
own = sys.argv[5]


def tcp(family=socket.AF_INET, to=None, options=(), source=None):
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.settimeout(ALLOWED_S)
        for level, name, value in options:
            one.setsockopt(level, name, value)
        if source:
            one.bind(source)
        one.connect((to or host, port))
        return bool(one.recv(1))


def udp(to=None, size=5, options=()):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(ALLOWED_S)
        for level, name, value in options:
            one.setsockopt(level, name, value)
        one.sendto(b"x" * size, to or (host, port))
        return bool(one.recv(4096))


def fast_open():
    with socket.socket() as one:
        one.settimeout(ALLOWED_S)
        one.sendto(b"x", MSG_FASTOPEN, (host, port))
        return bool(one.recv(1))


def raw(family, kind, protocol):
    socket.socket(family, kind, protocol).close()
    return True


def loopback_down():
    request = struct.pack("16sh14x", b"lo", 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        fcntl.ioctl(one, SIOCSIFFLAGS, request)
    return True


def route():
    """Add a route: RTM_NEWROUTE for one address to the loopback device."""
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, 32, 0, 0, 254, 3, 0, 1, 0)
    body += struct.pack("=HH4s", 8, 1, socket.inet_aton(host)) + struct.pack("=HHI", 8, 4, 1)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as one:
        one.settimeout(ALLOWED_S)
        one.send(struct.pack("=IHHII", 16 + len(body), 24, 1 | 4 | 0x400, 1, 0) + body)
        answer = one.recv(4096)
    return struct.unpack("=i", answer[16:20])[0] == 0


def namespace():
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.unshare(CLONE_NEWNET) == 0


device = (socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0\0")
loopback = (socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
mark = (socket.SOL_SOCKET, socket.SO_MARK, 1)
hop = struct.pack("=BBB4sx", LOOSE_SOURCE_ROUTE, 7, 4, socket.inet_aton(public))
WAYS = {
    "tcp": tcp,
    "tcp by device": lambda: tcp(options=[device]),
    "tcp by loopback": lambda: tcp(options=[loopback]),
    "udp by loopback": lambda: udp(options=[loopback]),
    "tcp with a mark": lambda: tcp(options=[mark]),
    "tcp from port 53": lambda: tcp(source=(own, 53)),
    "tcp from port 40053": lambda: tcp(source=(own, 40053)),
    "tcp from loopback": lambda: tcp(source=("127.0.0.1", 0)),
    "tcp over IPv6": lambda: tcp(socket.AF_INET6, f"::ffff:{host}"),
    "tcp by a route": lambda: tcp(options=[(socket.IPPROTO_IP, socket.IP_OPTIONS, hop)]),
    "fast open": fast_open,
    "udp": udp,
    "udp by device": lambda: udp(options=[device]),
    "udp in parts": lambda: udp(size=3000),
    "raw": lambda: raw(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    "packets": lambda: raw(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)),
    "loopback down": loopback_down,
    "another route": route,
    "another namespace": namespace,
    # These must work, or the others show nothing.
    "public tcp": lambda: tcp(to=public),
    "public udp": lambda: udp(to=(public, public_port)),
}

for name, way in WAYS.items():
    with contextlib.suppress(OSError):
        if way():
            sys.stdout.write(f"{name}\n")
