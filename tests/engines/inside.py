"""A container for a command of this checkout in which only the engine's socket is shared.

The host's /usr, this checkout and its environment are readable at their usual paths. Everything
else is the container's own: its /var/tmp is not the host's, which makes binds fail there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from scripts.distributions import sources
from tests.engines import lent, stock
from tests.hostwatch import loopwatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.engines.reached import Reached

REPOSITORY = Path(__file__).resolve().parents[2]
SOCKET = "/var/run/docker.sock"
MARK = "TEST_SANDKASTEN_INSIDE"
# What looks at sandboxes from outside must see their processes, which a container's own does not.
OVERSIGHT = ("--pid", "host", "--cap-add", "SYS_PTRACE")


@dataclass(frozen=True, slots=True)
class Inside:
    engine: Reached
    image: str = "debian"
    volumes: Mapping[str, str] = field(default_factory=dict)
    """Named volumes of the engine, or directories of its machine, by where they are seen."""
    options: Sequence[str] = ()
    """Further words for `docker run`."""
    network: str = "none"

    def words(self, *command: str, env: Mapping[str, str] | None = None) -> list[str]:
        """Return the command to run, with `Reached.environment` in the environment."""
        near = replace(self.engine, host=f"unix://{SOCKET}", certificates="")
        told = {
            "PYTHONPATH": os.pathsep.join(
                str(REPOSITORY / path) for path in [*sources(), "contract/src", ""]
            ),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LANG": "C.UTF-8",
            MARK: "1",
            **lent.environment(local=near),
            **(env or {}),
        }
        mounted = {SOCKET: urlsplit(self.engine.host).path, **self.volumes}
        return [
            *("docker", "run", "--rm", "--network", self.network),
            *(word for path in readable() for word in ("-v", f"{path}:{path}:ro")),
            *(word for at, what in mounted.items() for word in ("-v", f"{what}:{at}")),
            *(word for name, value in told.items() for word in ("-e", f"{name}={value}")),
            *("-w", str(REPOSITORY), *self.options, stock.reference(self.image), *command),
        ]

    @loopwatch.of_the_test
    def run(
        self, *command: str, env: Mapping[str, str] | None = None, timeout_s: float = 600.0
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(*command, env=env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **self.engine.environment},
            timeout=timeout_s,
            check=False,
        )

    def python(self, *words: str, **options: float) -> subprocess.CompletedProcess[str]:
        """This checkout's interpreter."""
        return self.run(sys.executable, *words, **options)  # type: ignore[arg-type]


def readable() -> list[str]:
    """Return the directories of this checkout, its environment and its interpreter."""
    wanted = [REPOSITORY, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve(), Path("/usr")]
    kept: list[Path] = []
    for path in sorted(set(wanted), key=lambda one: len(one.parts)):
        if not any(path.is_relative_to(other) for other in kept):
            kept.append(path)
    return [str(path) for path in kept]


def is_inside() -> bool:
    return os.environ.get(MARK) == "1"
