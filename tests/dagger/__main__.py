"""Start an engine by hand: `python -m tests.dagger none` or `egress`.

Prints the environment of a client, and stops the engine when its input ends or at Ctrl-C.
"""

# ruff: noqa: T201  (its output is its product)

from __future__ import annotations

import argparse
import contextlib
import sys

from tests.dagger import programs
from tests.dagger.client import environment
from tests.dagger.engine_process import EngineProcess


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.dagger", description=__doc__)
    parser.add_argument("network", choices=("none", "egress"))
    if why := programs.missing():
        parser.exit(1, f"{why}\n")
    chosen = parser.parse_args()
    with EngineProcess(chosen.network) as engine:
        for name, value in environment(engine.address).items():
            print(f"export {name}={value}")
        print(f"# by another machine: {engine.tcp_address}")
        print(f"# log: {engine.folder / 'log'}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.buffer.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
