"""`python -m benchmarks.compare REV`: this checkout against another revision, in turns.

A turn is a process of one revision that makes sandboxes and repeats every operation. The turns of
the two alternate, so that whatever else the machine does meets both. Prints the median of each and
the ratio (this / REV) with the 95 % interval of a bootstrap over rounds. REV is checked out and its
runner built below build/compare/, once; it runs with the Python packages of this checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_ROUNDS: Final = 20
_DRAWS: Final = 2000
# Only what every revision has: the first names of the contract.
_TURN: Final = """
import json, subprocess, sys, time
took = {}

def timed(name, work, times=1):
    for _ in range(times):
        began = time.perf_counter()
        value = work()
        took.setdefault(name, []).append((time.perf_counter() - began) * 1000)
    return value

def cli(*words):
    subprocess.run([sys.executable, "-m", "sandkasten_server.cli", *words], check=True,
                   stdout=subprocess.DEVNULL)

def first():
    global sandkasten
    import sandkasten
    sandkasten.Sandbox

timed("import of Sandbox", first)
box = timed("first create in a process", sandkasten.Sandbox)
box.close()
for _ in range(3):
    box = timed("create", sandkasten.Sandbox)
    box.exec("true")
    timed("destroy", box.close)
with sandkasten.Sandbox() as box:
    box.exec("true")
    timed("exec true (shell)", lambda: box.exec("true"), 30)
    timed("exec true (argv)", lambda: box.exec(["true"]), 30)
    timed("output of 1 MB", lambda: box.exec(["head", "-c", "1000000", "/dev/zero"]), 5)
    timed("write 1 MB", lambda: box.write("/workspace/file", bytes(1_000_000)), 10)
    timed("read 1 MB", lambda: box.read("/workspace/file"), 10)
    timed("list a folder", lambda: box.ls("/usr/bin"), 5)
timed("one-shot python", lambda: sandkasten.run("print(1)"), 3)
timed("sandkasten version", lambda: cli("version"))
timed("sandkasten run (embedded)", lambda: cli("run", "-c", "print(1)"))
print(json.dumps(took))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("revision", metavar="REV")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there as well")
    arguments = parser.parse_args()
    other = _checked_out(arguments.revision)
    rounds: list[tuple[dict[str, float], dict[str, float]]] = []
    for number in range(arguments.rounds):
        turns = [ROOT, other] if number % 2 == 0 else [other, ROOT]
        by_tree = {tree: _turn(tree) for tree in turns}
        rounds.append((by_tree[ROOT], by_tree[other]))
        print(f"\rround {number + 1} of {arguments.rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    compared = figures(rounds)
    _show(compared, arguments.revision)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(compared, indent=2) + "\n")
    return 0


def _checked_out(revision: str) -> Path:
    """Return a tree of the revision with its runner built."""
    try:
        commit = _git("rev-parse", "--verify", f"{revision}^{{commit}}")
    except subprocess.CalledProcessError:
        raise SystemExit(f"error: git has no revision {revision}") from None
    tree = ROOT / "build" / "compare" / commit
    if not any(tree.glob("src/*/_bin/sandkasten-runner")):
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir(parents=True)
        archive = subprocess.run(
            ["git", "-C", str(ROOT), "archive", commit], check=True, stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "-x", "-C", str(tree)], check=True, input=archive.stdout)
        target = {"CARGO_TARGET_DIR": str(ROOT / "build" / "compare" / "runner")}
        subprocess.run(
            [str(tree / "runner" / "build.sh")],
            check=True,
            env={**os.environ, **target},
            stdout=sys.stderr,
        )
    return tree


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def _sources(tree: Path) -> list[Path]:
    """Return the directories of packages; the oldest trees have one."""
    return [tree / "src", *sorted(tree.glob("*/src")), *sorted(tree.glob("plugins/*/src"))]


def _turn(tree: Path) -> dict[str, float]:
    """Run one process of the tree; return the median of each operation in milliseconds."""
    data = Path(tempfile.mkdtemp(prefix="skc-", dir="/var/tmp"))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(data),
        "PYTHONPATH": os.pathsep.join(str(path) for path in _sources(tree)),
        "SANDKASTEN_DATA_DIR": str(data / "data"),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TURN],
            check=True,
            env=environment,
            stdout=subprocess.PIPE,
            cwd=data,
        )
    finally:
        shutil.rmtree(data, ignore_errors=True)
    return {name: statistics.median(ms) for name, ms in json.loads(done.stdout).items()}


def figures(
    rounds: list[tuple[dict[str, float], dict[str, float]]],
) -> dict[str, dict[str, float]]:
    draw = random.Random(0)
    result = {}
    for name in rounds[0][0]:
        pairs = [(here[name], there[name]) for here, there in rounds]
        ratios = sorted(
            _ratio([draw.choice(pairs) for _ in range(len(pairs))]) for _ in range(_DRAWS)
        )
        result[name] = {
            "this_ms": statistics.median(here for here, _ in pairs),
            "other_ms": statistics.median(there for _, there in pairs),
            "ratio": _ratio(pairs),
            "low": ratios[int(_DRAWS * 0.025)],
            "high": ratios[int(_DRAWS * 0.975)],
        }
    return result


def _ratio(pairs: list[tuple[float, float]]) -> float:
    """The median over rounds: the two turns of a round met the same neighbours."""
    return statistics.median(here / there for here, there in pairs)


def _show(compared: dict[str, dict[str, float]], revision: str) -> None:
    print(f"{'':28}{'this':>10}{revision[:12]:>14}{'ratio':>8}   95 %")
    for name, row in compared.items():
        print(
            f"{name:28}{row['this_ms']:>7.1f} ms{row['other_ms']:>11.1f} ms{row['ratio']:>8.2f}"
            f"   {row['low']:.2f} - {row['high']:.2f}"
        )


if __name__ == "__main__":
    sys.exit(main())
