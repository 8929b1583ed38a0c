"""The host watch around several programs, whose own `--hostwatch` would count each other.

`python -m tests.hostwatch before FILE` records the host, `… after FILE` compares and fails on a
difference. All programs in between must have the same marker in their environment.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from tests.hostwatch import snapshot
from tests.hostwatch.difference import settled


def main(when: str, file: Path) -> int:
    # Each run of pytest has a canary of its own, and looks after it.
    no_canary = file.parent / "no-canary"
    if when == "before":
        file.write_text(json.dumps(dataclasses.asdict(snapshot.take(no_canary))))
        return 0
    left = settled(snapshot.Snapshot(**json.loads(file.read_text())), no_canary)
    if not left:
        sys.stdout.write("the host is as it was before the run\n")
        return 0
    sys.stdout.write("the run changed the host\n" + "".join(f"  {line}\n" for line in left))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
