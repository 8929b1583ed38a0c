"""Capabilities inside a sandbox: data, and the bits the kernel uses for them.

All of them apply only within the sandbox's own user namespace; none reaches the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

# <linux/capability.h>
_NUMBERS: Final = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_FSETID": 4,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SETPCAP": 8,
    "CAP_NET_BIND_SERVICE": 10,
    "CAP_SYS_CHROOT": 18,
    "CAP_AUDIT_WRITE": 29,
    "CAP_SETFCAP": 31,
}

# To switch to the user, to empty that user's bounding set, and to kill its processes.
RUNNER: Final = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL")

# What package managers and build tools need from root, as in usual containers. Left out: making
# devices (useless in a user namespace) and raw sockets (only TCP and DNS leave a sandbox).
DEV_USER: Final = tuple(_NUMBERS)


def bits(names: Iterable[str]) -> int:
    return sum(1 << _NUMBERS[name] for name in set(names))
