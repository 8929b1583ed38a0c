"""Host mounts are checked when they are used, by what the source really is."""

from __future__ import annotations

import os
import socket

import pytest

from sandkasten.errors import BackendUnavailable, PolicyDenied
from sandkasten.model.sandbox.cell_spec import HostMount
from sandkasten.model.sandbox.host_mounts import MountRule
from sandkasten_runtime.linux.storage.host_mount_check import HostMountCheck

pytestmark = pytest.mark.anyio


@pytest.fixture
def resolve_mount(tmp_path):
    mounts = HostMountCheck(tmp_path / "data")

    async def resolve(source) -> HostMount:
        return (await mounts.resolve([MountRule("m", str(source), "/mnt/m")]))[0]

    return resolve


async def test_a_directory_and_a_file_are_mounted_by_their_real_paths(resolve_mount, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "link").symlink_to("models")
    (tmp_path / "models" / "one").write_text("x")
    real = str(tmp_path / "models")
    assert await resolve_mount(tmp_path / "models") == HostMount(real, "/mnt/m", below="")
    assert await resolve_mount(tmp_path / "link") == HostMount(real, "/mnt/m", below="")
    assert await resolve_mount(tmp_path / "link" / "one") == HostMount(
        f"{real}/one", "/mnt/m", below=""
    )


async def test_a_missing_mount_source_is_named(resolve_mount, tmp_path):
    with pytest.raises(BackendUnavailable, match="mount m: .*/gone cannot be mounted") as told:
        await resolve_mount(tmp_path / "gone")
    assert "policy.mounts" in told.value.hint
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "round").symlink_to("round")
    for name in ("dangling", "round"):
        with pytest.raises(BackendUnavailable):
            await resolve_mount(tmp_path / name)


@pytest.mark.promise("P24")
@pytest.mark.parametrize(
    "secret", ["/", "/etc", "/etc/shadow", "/proc/1", "/root", "/dev", "/home"]
)
async def test_a_symlink_to_a_secret_is_refused(resolve_mount, tmp_path, secret):
    (tmp_path / "link").symlink_to(secret)
    with pytest.raises(PolicyDenied, match="mount m: source "):
        await resolve_mount(tmp_path / "link")


async def test_the_data_directory_and_its_parents_are_refused(resolve_mount, tmp_path):
    (tmp_path / "data" / "cells").mkdir(parents=True)
    (tmp_path / "link").symlink_to("data")
    for source in (tmp_path, tmp_path / "data", tmp_path / "data" / "cells", tmp_path / "link"):
        with pytest.raises(PolicyDenied, match="would show"):
            await resolve_mount(source)


async def test_a_socket_a_pipe_and_a_device_are_refused(resolve_mount, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    os.mknod(tmp_path / "null", 0o20666, os.makedev(1, 3))
    with pytest.raises(PolicyDenied, match="is neither a directory nor a file"):
        await resolve_mount(tmp_path / "pipe")
    with pytest.raises(PolicyDenied, match="is neither a directory nor a file"):
        await resolve_mount(tmp_path / "null")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "s"))
        with pytest.raises(PolicyDenied, match="is neither a directory nor a file"):
            await resolve_mount(tmp_path / "s")


@pytest.mark.promise("P24")
async def test_a_directory_with_a_socket_somewhere_below_is_refused(resolve_mount, tmp_path):
    """A read-only mount does not prevent connecting to the socket."""
    deep = tmp_path / "models" / "a" / "b"
    deep.mkdir(parents=True)
    assert (await resolve_mount(tmp_path / "models")).target == "/mnt/m"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(deep / "docker.sock"))
        bound.listen()
        with pytest.raises(PolicyDenied, match=r"a process listens on .*/models/a/b/docker\.sock"):
            await resolve_mount(tmp_path / "models")
        (tmp_path / "other").mkdir()
        assert (await resolve_mount(tmp_path / "other")).target == "/mnt/m"
