"""Images that are missing, refused, removed, foreign or hostile: typed errors."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from plugins.docker.tests.fake_docker import FakeDocker, answered
from plugins.docker.tests.site import FAR, IMAGE, nothing_left, opened, sh
from sandkasten.errors import (
    ImageNotFound,
    InvalidImage,
    PayloadTooLarge,
    RegistryUnavailable,
    SandkastenError,
    Unauthorized,
    UnsupportedByBackend,
)
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten.ports.pull_limits import PullLimits
from sandkasten_docker import resource_names
from sandkasten_docker.backend import DockerBackend
from sandkasten_docker.docker_options import DockerOptions
from tests import imagekit
from tests.images.registries import HTPASSWD
from tests.loopback_port import free_port
from tests.patience import PATIENCE_S
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sandkasten_runtime.engine.engine import Engine
    from tests.engines.engine import Engine as Dockerd
    from tests.engines.reached import Reached

pytestmark = pytest.mark.promise("P59")


def far(image: str) -> CreateRequest:
    return CreateRequest(SandboxOptions(backend="docker", image=image))


async def refused(sand: Engine, image: str, kind: type[SandkastenError]) -> SandkastenError:
    with pytest.raises(kind) as caught:
        await sand.create(far(image))
    assert image.rpartition("/")[2].partition(":")[0] in caught.value.message, caught.value.message
    assert caught.value.hint
    assert await sand.list(all=True) == []
    return caught.value


async def test_an_image_that_exists_nowhere_is_a_typed_error(docker_engine, data):
    async with opened(data, docker_engine, docker_pull="never", images_pull="never") as sand:
        await refused(sand, "nobody/has-this:1", ImageNotFound)
    # Nobody listens there.
    free = f"127.0.0.1:{free_port()}/nobody/has-this:1"
    async with opened(data, docker_engine, allowed_images=f"{free},{IMAGE}") as sand:
        error = await refused(sand, free, RegistryUnavailable)
        assert "docker load" in error.hint
        assert "sandkasten image import" in error.hint
    async with opened(data, docker_engine, docker_pull="missing") as sand:
        await refused(sand, f"127.0.0.1:{free_port()}/nobody/has-this:1", RegistryUnavailable)
        # What is there is not asked for.
        assert (await sand.create(FAR)).image == IMAGE
    assert await nothing_left(docker_engine, data) == []


async def test_an_engine_pulls_only_a_full_name_and_no_more_than_the_limit(tmp_path):
    heard: list[tuple[str, Mapping[str, Any]]] = []

    class Events:
        def emit(self, event: str, fields: Mapping[str, Any]) -> None:
            heard.append((event, fields))

    async def missing(_: object, writer: asyncio.StreamWriter) -> None:
        writer.write(answered(b'{"message": "none"}', "404 Not Found", "Connection: close"))

    lines = [
        {"status": "Downloading", "id": digest, "progressDetail": {"current": 1, "total": 600}}
        for digest in ("aa", "bb")
    ]
    async with FakeDocker(tmp_path / "socket") as docker_engine:
        backend = DockerBackend(
            tmp_path / "data",
            DockerOptions(host=docker_engine.host),
            pull_limits=PullLimits(image_bytes=1000),
            events=Events(),
        )
        docker_engine.says(r"GET /images/.*/json", missing)
        docker_engine.says(
            r"POST /images/create", b"\n".join(json.dumps(line).encode() for line in lines)
        )
        assert backend.capabilities.pulls == "named"
        assert await backend.find_image(["python:3.11-slim"]) is None
        assert "POST /images/create" not in docker_engine.asked
        with pytest.raises(PayloadTooLarge) as refused:
            await backend.find_image(["python:3.11-slim"], fetch=True)
        assert "images.pull_max_bytes" in refused.value.hint
        assert [event for event, _ in heard] == [
            *("image.pull_started", "image.pull_progress", "image.pull_failed")
        ]
        assert heard[1][1] == {
            "image": "python:3.11-slim", "step": "layer aa", "done": 1, "total": 600,
        }  # fmt: skip
        await backend.aclose()


async def test_an_image_is_pulled_from_a_registry_and_a_refusal_is_a_typed_error(
    stoppable_docker, data, tmp_path
):
    docker_engine = stoppable_docker.reached
    with (
        _registry(stoppable_docker, tmp_path / "open") as free,
        _registry(stoppable_docker, tmp_path / "closed", HTPASSWD) as closed,
    ):
        name = f"{free}/some/thing:1"
        await asyncio.to_thread(docker_engine.docker, "tag", IMAGE, name)
        await asyncio.to_thread(docker_engine.docker, "push", name)
        await asyncio.to_thread(docker_engine.docker, "rmi", name)
        async with opened(data, docker_engine) as sand:
            await refused(sand, name, InvalidImage)
        async with opened(data, docker_engine, allowed_images=name) as sand:
            info = await sand.create(far(name))
            assert (await sh(sand, info.id, "echo pulled")).stdout == b"pulled\n"
            await sand.destroy(info.id)
        async with opened(data, docker_engine, docker_pull="missing") as sand:
            await refused(sand, f"{free}/some/thing:2", InvalidImage)
            await refused(sand, f"{free}/nobody/has-this:1", InvalidImage)
            await refused(sand, f"{closed}/some/thing:1", Unauthorized)
        await asyncio.to_thread(docker_engine.docker, "rmi", name)
    assert await nothing_left(docker_engine, data) == []


@contextmanager
def _registry(docker_engine: Dockerd, folder: Path, users: str = "") -> Iterator[str]:
    """Debian's docker-registry on the loopback of the engine's machine."""
    folder.mkdir()
    address = f"127.0.0.1:{free_port()}"
    config: dict[str, Any] = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": address},
    }
    if users:
        (folder / "users").write_text(users)
        config["auth"] = {"htpasswd": {"realm": "test", "path": str(folder / "users")}}
    # JSON is YAML.
    (folder / "config.yml").write_text(json.dumps(config))
    words = ["docker-registry", "serve", str(folder / "config.yml")]
    serving = docker_engine.machine.start(words, folder / "log")
    try:
        host, port = address.split(":")
        look = f"import socket; socket.create_connection(({host!r}, {port})).close()"
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with suppress(RuntimeError):
                docker_engine.machine.run("python3", "-c", look)
                break
        yield address
    finally:
        serving.terminate()
        serving.wait()


@pytest.mark.long(reason="`make test` has an image that exists nowhere")
async def test_an_image_removed_between_plan_and_create_is_a_typed_error(
    docker_engine, data, monkeypatch
):
    docker_engine.docker("tag", IMAGE, "brief:1")
    _load(docker_engine, "brief:2", {"Labels": {"brief": "yes"}})
    async with opened(data, docker_engine) as sand:
        planned = sand._sandboxes._planner.plan

        async def plan(request, **more):
            result = await planned(request, **more)
            await asyncio.to_thread(docker_engine.docker, "rmi", "-f", "brief:1", "brief:2")
            return result

        monkeypatch.setattr(sand._sandboxes._planner, "plan", plan)
        # Another name leads to it still, and what was planned is what is made.
        info = await sand.create(far("brief:1"))
        assert (await sh(sand, info.id, "echo works")).stdout == b"works\n"
        await sand.destroy(info.id)
        monkeypatch.undo()
        _load(docker_engine, "brief:2", {"Labels": {"brief": "yes"}})
        monkeypatch.setattr(sand._sandboxes._planner, "plan", plan)
        docker_engine.docker("tag", IMAGE, "brief:1")
        await refused(sand, "brief:2", InvalidImage)
    assert await nothing_left(docker_engine, data) == []


async def test_an_image_for_another_architecture_is_a_typed_error(docker_engine, data):
    await asyncio.to_thread(docker_engine.docker, "load", "-i", str(imagekit.foreign_archive()))
    async with opened(data, docker_engine) as sand:
        error = await refused(sand, "foreign:1", InvalidImage)
        assert imagekit.FOREIGN in error.message
    assert await nothing_left(docker_engine, data) == []


HOSTILE: dict[str, Any] = {
    "Entrypoint": ["/bin/sh", "-c", "touch /workspace/entered"],
    "Cmd": ["--user", "0:0", "--listen", "/workspace/socket"],
    "User": "0:0",
    "WorkingDir": "/run/sandkasten/bin",
    "Volumes": {
        path: {}
        for path in (
            *("/workspace", "/tmp", "/run", "/run/sandkasten/bin", "/home/sandbox"),
            *("/data", "/bin", "/workspace/deep/er"),
        )
    },
    "Healthcheck": {"Test": ["CMD-SHELL", "touch /workspace/healthy"], "Interval": 1_000_000_000},
    "Env": [
        *("PATH=/evil:/bin", "HOME=/evil", "LD_PRELOAD=/evil.so", "NEW=a\nb=c", "SHELL=/evil"),
        *("no value", "BASH_ENV=/evil", "ENV=/evil", "ODD-NAME=x", "BIG=" + "x" * 60_000),
    ],
    "StopSignal": "SIGWINCH",
    "OnBuild": ["RUN touch /evil"],
    "Labels": {
        resource_names.LABEL: resource_names.RUNNER,
        resource_names.LABEL_OWNER: "somebody else",
        resource_names.LABEL_ID: "sbx_0123456789abcdef",
        resource_names.LABEL_VERSION: "99",
    },
    "ExposedPorts": {"80/tcp": {}},
    "Shell": ["/evil"],
    "Domainname": "evil",
    "Tty": True,
    "OpenStdin": True,
    "NetworkDisabled": False,
}


@pytest.mark.promise("P52")
@pytest.mark.parametrize("mode", few(["volume", "bind"]))
async def test_nothing_that_an_image_declares_weakens_its_sandbox(docker_engine, data, mode):
    _load(docker_engine, "hostile:1", HOSTILE)
    async with opened(data, docker_engine, mode) as sand:
        the_id = (await sand.create(far("hostile:1"))).id
        result = await sh(sand, the_id, "id -u; pwd; ls -A /workspace; grep -c eth /proc/net/dev")
        assert result.stdout.split() == [b"1000", b"/workspace", b"deep", b"0"]
        fields = "Cap(Prm|Eff|Bnd)|NoNew|Seccomp:"
        status = await sh(sand, the_id, f"grep -E '{fields}' /proc/self/status")
        assert set(status.stdout.split()[1::2]) == {b"0000000000000000", b"1", b"2"}
        details = docker_engine.ask("GET", f"/containers/{the_id}/json")
        config = details["Config"]
        assert config["Entrypoint"][0] == resource_names.RUNNER_PATH
        assert not config["Cmd"]
        assert config["Healthcheck"]["Test"] == ["NONE"]
        assert (config["User"], config["StopSignal"], config["Tty"]) == ("0:0", "SIGKILL", False)
        assert config["Labels"][resource_names.LABEL_ID] == the_id
        assert config["Labels"][resource_names.LABEL] == resource_names.CELL
        # Nothing of it is a place to write that no limit holds.
        writable = await sh(
            sand, the_id,
            "for at in /data /bin /run/sandkasten/bin /workspace/deep/er; do "
            "grep -q \" $at ro\" /proc/self/mountinfo || echo $at; done",
        )  # fmt: skip
        assert writable.stdout == b""
        await sand.destroy(the_id)
        assert await nothing_left(docker_engine, data) == []


async def test_image_volumes_are_refused_where_volumes_are_not_possible(docker_engine, data):
    _load(docker_engine, "voluminous:1", {"Volumes": {"/data": {}}})
    async with opened(data, docker_engine, "archive") as sand:
        await refused(sand, "voluminous:1", UnsupportedByBackend)
        the_id = (await sand.create(FAR)).id
        assert (await sh(sand, the_id, "echo works")).stdout == b"works\n"
    assert await nothing_left(docker_engine, data) == []


@pytest.mark.promise("P52")
async def test_an_image_link_cannot_mount_a_volume_over_the_runner(docker_engine, data):
    # Mounted after ours, because it has more parts; with what the image has there in it.
    evil = b"#!/bin/sh\nexec sleep 100\n"
    planted = imagekit.layer(
        {"run": None, "run/sandkasten": None, "run/sandkasten/bin": None,
         "run/sandkasten/bin/runner": evil, "a": None, "a/b": None, "a/b/c": "/run/sandkasten"}
    )  # fmt: skip
    _load(docker_engine, "led:1", {"Volumes": {"/a/b/c/bin": {}}}, planted)
    async with opened(data, docker_engine) as sand:
        error = await refused(sand, "led:1", InvalidImage)
        assert "/a/b/c" in error.message
    assert await nothing_left(docker_engine, data) == []


@pytest.mark.promise("P52")
@pytest.mark.parametrize(
    "path", few(["/run/sandkasten", "/home", "/run/sandkasten/listen/x", "/proc/x", "/sys/fs"], 2)
)
async def test_an_image_with_a_volume_at_a_reserved_path_is_refused(docker_engine, data, path):
    _load(docker_engine, "greedy:1", {"Volumes": {path: {}}})
    async with opened(data, docker_engine) as sand:
        error = await refused(sand, "greedy:1", InvalidImage)
        assert path in error.message
    assert await nothing_left(docker_engine, data) == []


@pytest.mark.parametrize("odd", few(["BIG=" + "x" * 200_000, "=x"]), ids=["long", "nameless"])
async def test_an_image_with_an_invalid_environment_is_refused(docker_engine, data, odd):
    _load(docker_engine, "wordy:1", {"Env": [odd]})
    async with opened(data, docker_engine) as sand:
        await refused(sand, "wordy:1", InvalidImage)
    assert await nothing_left(docker_engine, data) == []


def _load(docker_engine: Reached, name: str, config: dict[str, Any], *layers: bytes) -> None:
    """Load busybox with another configuration and additional `layers`."""
    sketch = imagekit.rootfs_sketch(imagekit.busybox_tar(), config=config, names=(name,))
    members = imagekit.docker_members(replace(sketch, layers=[*sketch.layers, *layers]))
    with tempfile.TemporaryDirectory() as folder:
        archive = imagekit.write_tar(Path(folder) / "image.tar", members)
        docker_engine.docker("load", "-i", str(archive))
