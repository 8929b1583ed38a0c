"""Files as another user of the image, on the real backend with root inside."""

from __future__ import annotations

import io
import tarfile

import pytest

import sandkasten
from sandkasten import Sandbox
from tests import imagekit

pytestmark = [pytest.mark.root, pytest.mark.promise("P91")]

APP = "app:x:1234:1235::/home/app:/bin/sh"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("store")
    sandkasten.Images(data_dir=path).import_archive(imagekit.busybox_tar(), name="box")
    return path


def check_users(box: Sandbox, tmp_path) -> None:
    box.exec(f"echo {APP} >> /etc/passwd; echo team:x:4321:app >> /etc/group", check=True)
    box.exec(
        "mkdir -m 777 /tmp/open; mkdir -m 700 /tmp/root; echo secret > /tmp/root/key;"
        "echo team > /tmp/team; chown 0:4321 /tmp/team; chmod 640 /tmp/team",
        check=True,
    )
    # What it makes is its own, and root's stays shut.
    made = box.write("/tmp/open/deep/file", "x", user="app")
    assert (made.uid, made.gid) == (1234, 1235)
    assert box.mkdir("/tmp/open/dir", user="app").uid == 1234
    assert box.stat("/tmp/open/deep", user=1234).uid == 1234
    assert box.read("/tmp/team", user="app") == b"team\n"
    for attempt in (
        lambda: box.read("/tmp/root/key", user="app"),
        lambda: box.write("/tmp/root/new", b"", user="app"),
        lambda: box.ls("/tmp/root", user="app"),
        lambda: box.stat("/tmp/root/key", user="app"),
        lambda: box.remove("/tmp/root/key", user="app"),
        lambda: box.move("/tmp/root/key", "/tmp/open/key", user="app"),
        lambda: box.download_tar("/tmp/root", io.BytesIO(), user="app"),
        lambda: box.read("/tmp/team", user="app:1235"),
    ):
        with pytest.raises(PermissionError):
            attempt()
    # Root is root again, with all of its rights, between the pieces of a stream too.
    assert box.read("/tmp/root/key") == b"secret\n"
    assert box.write("/tmp/root/new", b"").uid == 0
    assert box.read("/tmp/open/deep/file", user="root") == b"x"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo("big")
        member.size = 3 << 20
        tar.addfile(member, io.BytesIO(bytes(member.size)))
    box.upload_tar(packed.getvalue(), "/tmp/open", user="app")
    assert [(one.name, one.uid) for one in box.ls("/tmp/open", user="app")] == [
        ("big", 1234),
        ("deep", 1234),
        ("dir", 1234),
    ]
    assert box.download("/tmp/open/big", tmp_path / "big", user="app").bytes == 3 << 20
    box.move("/tmp/open/big", "/tmp/open/moved", user="app")
    assert box.remove("/tmp/open/deep", recursive=True, user="app") == 2
    assert box.exists("/tmp/open/moved", user="app")


def test_files_are_used_as_the_user(data_dir, tmp_path):
    with Sandbox("box", profile="dev", backend="local", data_dir=data_dir) as box:
        check_users(box, tmp_path)
        with pytest.raises(sandkasten.InvalidRequest, match="no user 'nobody-here'"):
            box.read("x", user="nobody-here")
        with pytest.raises(sandkasten.InvalidRequest, match="USER or USER:GROUP"):
            box.read("x", user="-a b")


@pytest.mark.long(reason="`make test` has the backend local")
@pytest.mark.parametrize("backend", ["oci", "gvisor"])
def test_files_are_used_as_the_user_on_other_engines(backend, data_dir, tmp_path):
    with Sandbox("box", profile="dev", backend=backend, data_dir=data_dir) as box:
        check_users(box, tmp_path)


def test_a_sandbox_without_root_has_one_user(data_dir):
    with Sandbox("box", backend="local", data_dir=data_dir) as box:
        assert box.write("a", "x", user="sandbox").uid == 1000
        with pytest.raises(sandkasten.InvalidRequest, match="only profile dev has other users"):
            box.read("a", user="root")
