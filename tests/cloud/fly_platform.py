"""The backend fly on a server of our own, for suites: `--platform fly`.

The server is a process that ends with this one: `python -m tests.cloud.fly_platform` prints its
address and ends at the end of its input. Its image is a Debian with our programs.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from sandkasten.backends.cloud.backend import CloudBackend
from sandkasten.backends.cloud.fly.fly_options import PROGRAMS, FlyOptions
from sandkasten.backends.cloud.fly.fly_provider import FlyProvider
from sandkasten.backends.cloud.machine_records import MachineRecords
from sandkasten.linux.programs import Programs
from tests.cloud.fly_server import APP, TOKEN, FlyServer
from tests.hostwatch import loopwatch
from tests.patience import PATIENCE_S
from tests.platform_choice import image_named

IMAGE = "registry.fly.io/sandboxes:debian"


def layers(place: Path) -> list[Path]:
    """Return the files of an image with our programs, topmost first."""
    directory = place / PROGRAMS.lstrip("/")
    directory.mkdir(parents=True)
    found = Programs.found(None, None)
    for program in (found.runner, found.egress):
        shutil.copy2(program, directory / program.name)
    place.chmod(0o755)
    return [place, *(Path(one) for one in image_named("debian").layers)]


def open_at(url: str, host: str, data_dir: Path, **other: Any) -> CloudBackend:
    values: dict[str, Any] = {"app": APP, "api_url": url, "api_token": TOKEN, "address": host}
    options = FlyOptions(**{"timeout_s": PATIENCE_S, **values, **other})
    records = MachineRecords(data_dir / "fly")
    owner = records.owner()
    return CloudBackend(FlyProvider(options, owner), records, owner, options.cloud)


@cache
@loopwatch.of_the_test
def _lent() -> tuple[str, str]:
    """Return the URL of the server of this process, and the host of its proxy."""
    command = [sys.executable, "-m", "tests.cloud.fly_platform"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    assert process.stdout is not None
    url, host = process.stdout.readline().split()

    def close() -> None:
        process.communicate(timeout=PATIENCE_S)

    atexit.register(close)
    return url, host


def open_lent(data_dir: Path) -> CloudBackend:
    return open_at(*_lent(), data_dir)


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="skfly-image-", dir="/var/tmp") as place,
        FlyServer(layers(Path(place))) as server,
    ):
        sys.stdout.write(f"{server.url} {server.host}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
