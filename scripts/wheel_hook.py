"""Build hook of the wheel: puts our programs in, and names the platform they are for.

Without the runner's binaries (a checkout where they were never built) the wheel is pure Python: the
client part works everywhere, and the embedded engine says what is missing. It fails when only
some of the binaries are there, because such a wheel would install and then not work.

The command `sandkasten` is the program of that name, or a script in Python where it was not built.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BINARIES = (
    "sandkasten-runner",
    "sandkasten-launch",
    "sandkasten-unpack",
    "sandkasten-egress",
    "sandkasten-gate",
)
COMMAND = "sandkasten"
SCRIPT = "scripts/command.py"

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
        folder = Path(self.root) / "src" / "sandkasten_runtime" / "_bin"
        command = folder / COMMAND
        script = command if command.is_file() else Path(self.root) / SCRIPT
        build_data["shared_scripts"][str(script)] = COMMAND
        if version == "editable":
            return
        binaries = [folder / name for name in BINARIES if (folder / name).is_file()]
        if not binaries and script != command:
            return
        if len(binaries) != len(BINARIES):
            raise ValueError(
                f"{folder} holds only {[p.name for p in binaries]}; run runner/build.sh"
            )
        machines = {machine_of(path) for path in [*binaries, command] if path.is_file()}
        if len(machines) != 1:
            raise ValueError(f"the binaries in {folder} are for different machines: {machines}")
        build_data["pure_python"] = False
        build_data["tag"] = tag_for(machines.pop())
        for path in binaries:
            build_data["force_include"][str(path)] = f"sandkasten_runtime/_bin/{path.name}"
