"""The server that stands for Modal in a test run, and backends on it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sandkasten_cloud.backend import CloudBackend
from sandkasten_cloud.machine_records import MachineRecords
from sandkasten_cloud.modal.modal_capabilities import MODAL
from sandkasten_cloud.modal.modal_options import ModalOptions
from sandkasten_cloud.modal.modal_provider import ModalProvider
from tests.cloud import lent_services
from tests.cloud.modal.modal_server import ModalServer
from tests.platform_choice import image_named

if TYPE_CHECKING:
    from pathlib import Path


def served_images() -> dict[str, tuple[str, ...]]:
    """Return the images of the tests, as the server wants them."""
    layers = tuple(reversed(image_named("debian").layers))
    # A daemon writes names of images in full.
    return {"debian": layers, "debian:latest": layers}


def service() -> ModalServer:
    """Return the server of this run. Blocks."""
    return lent_services.lent("modal", lambda: ModalServer(served_images()))


def open_on_modal(server: ModalServer, data_dir: Path, **changes: Any) -> CloudBackend:
    """Open the backend; the SDK finds the server by the environment of this process."""
    os.environ.update(server.environment)
    options = ModalOptions(**changes)
    records = MachineRecords(data_dir / "modal")
    owner = records.owner()
    provider = ModalProvider(options, owner)
    return CloudBackend(provider, records, owner, options, MODAL)
