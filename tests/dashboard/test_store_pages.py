"""Pages of images, workspaces and stored files, in a browser on a real daemon."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

import pytest

from tests.client.http.served import served
from tests.dashboard.scenarios import played
from tests.images import registries
from tests.patience import FAR_TOO_LATE_S, PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.promise("P88"),
    pytest.mark.root,
    pytest.mark.long(reason="a browser takes a minute"),
    pytest.mark.timeout(10 * FAR_TOO_LATE_S),
]
BIG = os.urandom(8_000_000)


@contextmanager
def patient_registry() -> Iterator[str]:
    """Serve an image whose layer stops in the middle until `/release` was asked for."""
    made = registries.image(registries.layer({"hello": b"hi", "big": BIG}))
    released = threading.Event()

    class Registry(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            digest = self.path.rsplit("/", 1)[-1]
            if self.path == "/release":
                released.set()
                self.answer(b"", "text/plain")
            elif self.path == "/v2/":
                self.answer(b"{}", "application/json")
            elif "/manifests/" in self.path:
                self.answer(made.manifest, made.media_type)
            else:
                self.answer(made.blobs[digest], "application/octet-stream")

        do_HEAD = do_GET

        def answer(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            half = len(body) // 2
            self.wfile.write(body[:half])
            self.wfile.flush()
            if len(body) > len(BIG):
                released.wait(PATIENCE_S)
            self.wfile.write(body[half:])

        def log_message(self, *_: object) -> None:
            pass

    with registries.served(Registry) as port:
        yield f"localhost:{port}"


@contextmanager
def patient_mirror() -> Iterator[str]:
    """Serve a proxy to Debian's packages that answers, with none, after `/refuse` was asked for."""
    refused = threading.Event()

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/refuse":
                refused.set()
            refused.wait(PATIENCE_S)
            self.send_error(404)

        do_CONNECT = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with registries.served(Proxy) as port:
        yield f"http://localhost:{port}"


def test_images_workspaces_and_stored_files_are_kept_and_removed(tmp_path):
    with (
        patient_registry() as host,
        patient_mirror() as mirror,
        served(
            tmp_path / "data",
            backend="local",
            http_proxy=mirror,
            https_proxy=mirror,
            no_proxy="localhost",
        ) as daemon,
    ):
        played(
            "stores",
            daemon,
            DASHBOARD_IMAGE=f"{host}/team/app:1",
            DASHBOARD_RELEASE=f"http://{host}/release",
            DASHBOARD_REFUSE=f"{mirror}/refuse",
        )
