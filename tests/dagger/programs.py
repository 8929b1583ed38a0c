"""Where the programs of a Dagger engine are, which `scripts/dagger_build.sh` builds or unpacks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PLACE = REPOSITORY / "build" / "dagger"
SUMS = Path(__file__).parent / "engine" / "go.sum"
VERSION = SUMS.read_text().split()[1]
DAGGER = PLACE / f"dagger-{VERSION}"
CNI = DAGGER / "cni"
DEBIAN = PLACE / "debian"
_COMMANDS = ("engine", "init", "dnsname", "dialstdio", "dagger")
_PLUGINS = ("bridge", "loopback", "firewall", "host-local")
REQUIRED = "TEST_SANDKASTEN_DAGGER"
"""Set to 1 by `make test-dagger`, where a program that is not there is a failure."""


def missing() -> str:
    """Return why no engine can be started here; empty when one can."""
    if os.geteuid() != 0:
        return "starting a Dagger engine needs root"
    needed = ("unshare", "nsenter", "ip", "iptables")
    lacking = [name for name in needed if not shutil.which(name)]
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    built = [*(DAGGER / name for name in _COMMANDS), *(CNI / name for name in _PLUGINS)]
    lacking = [path.name for path in (*built, dnsmasq(), runc()) if not path.exists()]
    return f"not built: {', '.join(lacking)} (scripts/dagger_build.sh)" if lacking else ""


def require() -> None:
    """Skip the test if no engine can be started here; fail it in `make test-dagger`."""
    if why := missing():
        (pytest.fail if os.environ.get(REQUIRED) == "1" else pytest.skip)(why)


def command_line() -> Path:
    """Return the program that the SDK starts to reach an engine."""
    return DAGGER / "dagger"


def dnsmasq() -> Path:
    return DEBIAN / "usr" / "sbin" / "dnsmasq"


def runc() -> Path:
    return DEBIAN / "usr" / "sbin" / "runc"


def libraries() -> list[Path]:
    """Return the directories of the libraries that this machine lacks."""
    return sorted({path.parent for path in DEBIAN.glob("usr/lib/**/*.so.*")})
