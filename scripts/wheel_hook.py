"""Build hook of the wheel: puts the runner's binaries in, and names the platform they are for.

Without binaries (a checkout where the runner was never built) the wheel is pure Python: the
client part works everywhere, and the embedded engine says what is missing. It fails when only
some of the binaries are there, because such a wheel would install and then not work.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BINARIES = ("sandkasten-runner", "sandkasten-launch", "sandkasten-unpack", "sandkasten-egress")

# e_machine of the ELF header; the platform comes from the binary and not from the machine that
# packs it, so that a cross-built runner is never tagged for the wrong one.
_MACHINES = {62: "x86_64", 183: "aarch64"}


def machine_of(binary: Path) -> str:
    with binary.open("rb") as file:
        head = file.read(20)
    if len(head) < 20 or head[:4] != b"\x7fELF":
        raise ValueError(f"{binary} is no ELF binary; build it with runner/build.sh")
    order = "<" if head[5] == 1 else ">"
    (number,) = struct.unpack(order + "H", head[18:20])
    if number not in _MACHINES:
        raise ValueError(f"{binary} is built for machine {number}, which has no wheel tag here")
    return _MACHINES[number]


def tag_for(machine: str) -> str:
    """The binaries are static and use no C library, so old glibc and musl both satisfy them."""
    return f"py3-none-manylinux_2_17_{machine}.manylinux2014_{machine}.musllinux_1_1_{machine}"


class RunnerBinaries(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        folder = Path(self.root) / "src" / "sandkasten" / "_bin"
        found = [folder / name for name in BINARIES if (folder / name).is_file()]
        if not found:
            return
        if len(found) != len(BINARIES):
            raise ValueError(f"{folder} holds only {[p.name for p in found]}; run runner/build.sh")
        machines = {machine_of(path) for path in found}
        if len(machines) != 1:
            raise ValueError(f"the binaries in {folder} are for different machines: {machines}")
        build_data["pure_python"] = False
        build_data["tag"] = tag_for(machines.pop())
        for path in found:
            build_data["force_include"][str(path)] = f"sandkasten/_bin/{path.name}"
