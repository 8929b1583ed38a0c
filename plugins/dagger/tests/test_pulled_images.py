"""Images that an engine pulls by itself, from a registry that only its machine reaches."""

from __future__ import annotations

import io
import sys
import tarfile
import time
from typing import TYPE_CHECKING

import pytest

from plugins.dagger.tests import site
from sandkasten.errors import RegistryUnavailable, UnsupportedByBackend
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from tests import imagekit
from tests.images import registries
from tests.packages.wheels import wheel
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.dagger.engine_process import EngineProcess

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise("P123"),
    pytest.mark.long(reason="the engine is compiled for a quarter of an hour"),
    pytest.mark.timeout(600),
]
PORT = 5000
NAME = f"127.0.0.1:{PORT}/app"
# Whether an image has a /work of its own.
KINDS = ("without", "directory", "file", "link")
SERVER = """
import http.server, sys
class Files(http.server.SimpleHTTPRequestHandler):
    def guess_type(self, path):
        return sys.argv[3] if "/manifests/" in path else "application/octet-stream"
    def __init__(self, *given):
        super().__init__(*given, directory=sys.argv[1])
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Files).serve_forever()
"""


def layer(kind: str) -> bytes:
    """Return the tar of what an image has at /work, beside busybox."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo("work")
        info.mode = 0o755
        if kind == "directory":
            info.type = tarfile.DIRTYPE
            tar.addfile(info)
            info = tarfile.TarInfo("work/inner")
        if kind == "link":
            info.type, info.linkname = tarfile.SYMTYPE, "/etc"
        if kind != "without":
            tar.addfile(info)
    return out.getvalue()


@pytest.fixture(scope="module")
def registry(dagger_none: EngineProcess, tmp_path_factory) -> Iterator[str]:
    """Serve one image of each kind; yield the name without a tag."""
    folder: Path = tmp_path_factory.mktemp("registry")
    for part in ("manifests", "blobs"):
        (folder / "v2" / "app" / part).mkdir(parents=True)
    for kind in KINDS:
        layers = (imagekit.busybox_tar().read_bytes(), layer(kind))
        image = registries.image(*layers, architecture=registries.HERE)
        for tag in (kind, image.digest):
            (folder / "v2" / "app" / "manifests" / tag).write_bytes(image.manifest)
        for digest, content in image.blobs.items():
            (folder / "v2" / "app" / "blobs" / digest).write_bytes(content)
    words = [sys.executable, "-c", SERVER, str(folder), str(PORT), image.media_type]
    server = dagger_none.machine.start(words, folder / "log")
    try:
        _until_it_listens(dagger_none)
        yield NAME
    finally:
        server.kill()
        server.wait()


def _until_it_listens(dagger: EngineProcess) -> None:
    deadline = time.monotonic() + PATIENCE_S
    # 1388 is the port, 0A the state of a listener.
    while f"0100007F:{PORT:04X} 00000000:0000 0A" not in dagger.machine.run("cat", "/proc/net/tcp"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
async def engine(registry, dagger_none, tmp_path, monkeypatch):
    allowed = {"STATION_SANDBOX_ALLOWED_IMAGES": ",".join(f"{registry}:{tag}" for tag in _TAGS)}
    monkeypatch.setattr(site, "VARIABLES", allowed)
    more = {
        "dagger_engines_none": dagger_none.address,
        "default_image": f"{registry}:without",
        "packages_find_links": str(tmp_path / "w"),
    }
    async with site.opened(tmp_path / "data", archive=imagekit.busybox_tar(), **more) as instance:
        yield instance


_TAGS = (*KINDS, "missing")


def run(code: str, image: str, *packages: str) -> RunRequest:
    return RunRequest(
        code,
        runtime="sh",
        files={"in.txt": "text\n"},
        artifacts=("out",),
        options=SandboxOptions(image=image, pip_packages=packages),
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_work_is_the_workspace_whatever_the_image_has_there(engine, registry, kind):
    code = "pwd; readlink /work; cat /work/in.txt; echo $A; ls /work | sort; echo 1 > /work/out"
    result = await engine.run(run(code, f"{registry}:{kind}"))
    assert result.ok, result.stderr
    assert result.stdout.decode().split() == [
        *("/workspace", "workspace", "text", "1", "in.txt", "main.sh")
    ]
    assert [(artifact.path, artifact.data) for artifact in result.artifacts] == [("out", b"1\n")]
    assert result.image == f"{registry}:{kind}"


async def test_packages_for_an_image_that_only_the_engine_has_are_refused_by_name(
    engine, registry, tmp_path
):
    wheel(tmp_path / "w", "zeta")
    with pytest.raises(UnsupportedByBackend, match="packages") as refused:
        await engine.run(run("true", f"{registry}:without", "zeta"))
    assert "image" in refused.value.hint


async def test_an_image_that_the_registry_does_not_have_is_an_error_with_a_remedy(engine, registry):
    with pytest.raises(RegistryUnavailable) as failed:
        await engine.run(run("true", f"{registry}:missing"))
    assert "check the name" in failed.value.hint
