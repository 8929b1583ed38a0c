"""Our own daemon as E2B: another process, which serves its protocol on the local backend.

Its sandboxes have a Debian image and the dev profile, because those of E2B have a root user.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten_cloud.backend import CloudBackend
from sandkasten_cloud.e2b.e2b_capabilities import E2B
from sandkasten_cloud.e2b.e2b_options import E2bOptions
from sandkasten_cloud.machine_records import MachineRecords
from tests import platform_choice
from tests.client.http.served import served
from tests.cloud import lent_services
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.client.http.served import Served

TEMPLATE = "debian"
UNREACHABLE = "127.0.0.1:1/no/such:tag"
"""A template that the service would pull, from a registry that does not answer."""


@contextmanager
def e2b_daemon(**environ: str) -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="pytest-of-e2b-", dir="/var/tmp") as place:
        data_dir = Path(place) / "data"
        data_dir.mkdir(mode=0o700)
        platform_choice.image_named(TEMPLATE)
        (data_dir / "images").symlink_to(platform_choice.image_store())
        variables = {
            "SANDKASTEN_COMPAT_E2B_PROFILE": "dev",
            "SANDKASTEN_DEFAULTS_PIDS_LIMIT": "1024",
            "SANDKASTEN_DEFAULTS_MEMORY_MB": "1024",
            "SANDKASTEN_IMAGES_REGISTRIES": '{"127.0.0.1:1": {"insecure": true}}',
            **environ,
        }
        with served(data_dir, backend="local", **variables) as daemon:
            yield daemon


def service() -> Served:
    return lent_services.lent("e2b", e2b_daemon)


def options_for(daemon: Served, url: str = "") -> E2bOptions:
    """Return the options of a backend on this daemon; `url` is that of a proxy before its API."""
    return E2bOptions(
        api_key=daemon.key,
        domain="localhost",
        api_url=f"{url or daemon.url}/e2b",
        sandbox_url=f"{daemon.url}/e2b",
        template=TEMPLATE,
        timeout_s=PATIENCE_S,
        start_s=PATIENCE_S,
    )


def open_backend(data_dir: Path, options: E2bOptions) -> CloudBackend:
    from sandkasten_cloud.e2b.e2b_provider import E2bProvider

    records = MachineRecords(data_dir / "e2b")
    owner = records.owner()
    return CloudBackend(E2bProvider(options, owner), records, owner, options, E2B)


def open_on_e2b(data_dir: Path) -> CloudBackend:
    return open_backend(data_dir, options_for(service()))
