"""The backend fly on a server of our own, for suites: `--platform fly`.

One server serves a test process. Its image is a Debian with our programs.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandkasten_cloud.backend import CloudBackend
from sandkasten_cloud.fly.fly_capabilities import FLY
from sandkasten_cloud.fly.fly_options import PROGRAMS, FlyOptions
from sandkasten_cloud.fly.fly_provider import FlyProvider
from sandkasten_cloud.machine_records import MachineRecords
from sandkasten_runtime.linux.programs import Programs
from tests.cloud import lent_services
from tests.cloud.fly_server import APP, TOKEN, FlyServer
from tests.patience import PATIENCE_S
from tests.platform_choice import image_named

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGE = "registry.fly.io/sandboxes:debian"


def layers(place: Path) -> list[Path]:
    """Return the files of an image with our programs, topmost first."""
    directory = place / PROGRAMS.lstrip("/")
    directory.mkdir(parents=True)
    found = Programs.found(None, None)
    for program in (found.runner, found.gate):
        shutil.copy2(program, directory / program.name)
    place.chmod(0o755)
    return [place, *(Path(one) for one in image_named("debian").layers)]


def open_at(url: str, host: str, data_dir: Path, **other: Any) -> CloudBackend:
    values: dict[str, Any] = {"app": APP, "api_url": url, "api_token": TOKEN, "address": host}
    options = FlyOptions(**{"timeout_s": PATIENCE_S, **values, **other})
    records = MachineRecords(data_dir / "fly")
    owner = records.owner()
    return CloudBackend(FlyProvider(options, owner), records, owner, options, FLY)


@contextmanager
def _server() -> Iterator[FlyServer]:
    with (
        tempfile.TemporaryDirectory(prefix="skfly-image-", dir="/var/tmp") as place,
        FlyServer(layers(Path(place))) as server,
    ):
        yield server


def service() -> FlyServer:
    """Return the server of this run. Blocks."""
    return lent_services.lent("fly", _server)


def open_lent(data_dir: Path) -> CloudBackend:
    server = service()
    return open_at(server.url, server.host, data_dir)
