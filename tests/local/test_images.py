"""Sandboxes on image layers: visible files, shared files, and unusual or hostile images."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from sandkasten.errors import (
    CommandNotExecutable,
    InvalidImage,
    SandkastenError,
    ShellNotFound,
    UnsupportedByBackend,
)
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec, HostMount
from sandkasten_runtime.backends.local.backend import LocalBackend
from sandkasten_runtime.linux.confinement import posture
from tests.local import trees
from tests.security.harness import ROOT, poll

# Where the kernel keeps its notes about layers: an ordinary user may not write the trusted ones.
NAMESPACE = "trusted" if ROOT else "user"
# Whom what nobody else owns belongs to: an ordinary user has but one id to give.
OWNER = "0" if ROOT else "1000"


@pytest.fixture(scope="module")
def box(make_box, busybox):
    with make_box(busybox) as box:
        yield box


@pytest.fixture(scope="module")
def deb(make_box, debian):
    with make_box(debian) as box:
        yield box


def refused(
    local, loop, image: Image, error: type[SandkastenError], **fields: object
) -> SandkastenError:
    """Return the error of a create after checking that nothing is left."""
    before = list(loop.run(local.owned()))
    with pytest.raises(error) as caught:
        loop.run(local.create(new_sandbox_id(), CellSpec(image=image, **fields)))  # type: ignore[arg-type]
    assert list(loop.run(local.owned())) == before
    return caught.value


@pytest.mark.promise("P52")
def test_the_root_is_the_image_and_nothing_of_the_host(box):
    names = box.exec(["ls", "-A", "/"]).text.split()
    assert sorted(names) == [
        "bin", "dev", "etc", "home", "proc", "run", "sys", "tmp", "var", "work", "workspace",
    ]  # fmt: skip
    assert box.exec(["ls", "-A", "/sys"]).text == ""
    assert box.exec(["cat", "/etc/hostname"]).text == "sandbox\n"
    assert "sandbox:x:1000:1000" in box.exec(["cat", "/etc/passwd"]).text


def test_a_shell_without_bash_keeps_its_state(box):
    assert box.exec("cd /tmp; x=5; export y=6").code == 0
    assert box.exec("echo $PWD $x $y").text == "/tmp 5 6\n"
    assert box.exec("exit 7").code == 7
    assert box.exec("echo $PWD $y").text == "/tmp 6\n"


@pytest.mark.promise("P52")
def test_the_root_is_read_only_except_for_the_writable_directories(box):
    answer = box.exec(
        ["sh", "-c", "for p in / /bin /etc /run /var /home /dev; do echo x > $p/x && echo $p; done"]
    )
    assert answer.text == ""
    answer = box.exec(
        ["sh", "-c", "for p in /workspace /tmp /home/sandbox /dev/shm; do echo x > $p/x; done"]
    )
    assert (answer.code, answer.stderr) == (0, b"")


@pytest.mark.root
def test_a_writable_root_keeps_the_ordinary_user_and_the_image(make_box, roots, skeleton):
    tree = trees.busybox(roots / "writable")
    (tree / "opt").mkdir()
    os.chown(tree / "opt", 1000, 1000)
    image = trees.image("writable", tree, skeleton)
    with make_box(image) as box:
        assert "Read-only" in box.exec(["touch", "/opt/x"]).stderr.decode()
    with make_box(image, writable_root=True) as box:
        assert box.exec(["sh", "-c", "id -u; echo y > /opt/x; cat /opt/x"]).text == "1000\ny\n"
        # Files of root are still not the user's, and /run holds our own program.
        for path in ("/bin/x", "/run/x", "/run/sandkasten/runner"):
            assert box.exec(["touch", path]).code != 0, path
        # Changes count against the size of the workspace.
        filled = box.exec(["dd", "if=/dev/zero", "of=/opt/big", "bs=1M", "count=100000"])
        assert b"No space left" in filled.stderr
    assert list((tree / "opt").iterdir()) == []


@pytest.mark.promise("P52")
@pytest.mark.root
def test_files_of_an_image_have_the_owners_of_the_image(make_box, roots, skeleton):
    tree = trees.busybox(roots / "owners")
    for name, owner in (("root", 0), ("user", 1000), ("someone", 4321)):
        (tree / name).write_text(name)
        os.chown(tree / name, owner, owner)
    with make_box(trees.image("owners", tree, skeleton)) as box:
        seen = box.exec(["stat", "-c", "%u:%g", "/root", "/user", "/someone"]).text.split()
        assert seen == ["0:0", "1000:1000", "4321:4321"]
    assert (tree / "someone").stat().st_uid == 4321


def test_an_upper_layer_replaces_and_removes_files(make_box, roots, skeleton):
    lower, upper = trees.busybox(roots / "lower"), roots / "upper"
    for name in ("kept", "changed", "removed", "opaque/old"):
        (lower / name).parent.mkdir(exist_ok=True)
        (lower / name).write_text("lower")
    upper.mkdir()
    (upper / "changed").write_text("upper")
    os.mknod(upper / "removed", 0o020600, os.makedev(0, 0))
    (upper / "opaque").mkdir()
    (upper / "opaque" / "new").write_text("upper")
    os.setxattr(upper / "opaque", f"{NAMESPACE}.overlay.opaque", b"y")
    with make_box(trees.image("two", lower, upper, skeleton)) as box:
        assert box.exec(["cat", "/kept", "/changed"]).text == "lowerupper"
        assert box.exec(["ls", "/opaque"]).text == "new\n"
        assert box.exec(["test", "-e", "/removed"]).code == 1


@pytest.mark.root
def test_overlayfs_attributes_of_an_image_are_ignored(make_box, roots, skeleton):
    """A directory that redirects to another one would show hidden files if it were followed."""
    lower, upper = trees.busybox(roots / "secretive"), roots / "redirecting"
    (lower / "secret").mkdir()
    (lower / "secret" / "key").write_text("key")
    upper.mkdir()
    os.mknod(upper / "secret", 0o020600, os.makedev(0, 0))
    (upper / "open").mkdir()
    os.setxattr(upper / "open", "trusted.overlay.redirect", b"/secret")
    with make_box(trees.image("redirect", lower, upper, skeleton)) as box:
        assert box.exec(["ls", "-A", "/open"]).text == ""


@pytest.mark.promise("P48")
def test_ten_sandboxes_of_one_image_read_the_same_files(make_box, busybox):
    """All of them use one inode of the host, which is in the page cache once."""
    real = os.stat(os.path.join(busybox.layers[0], "bin/busybox"))
    seen = set()
    boxes = [make_box(busybox) for _ in range(10)]
    for at in boxes:
        box = at.__enter__()
        # The device is the overlay's, one for each; the inode is the real file's.
        with open(f"/proc/{_sleeper(box)}/maps") as maps:
            seen |= {int(line.split()[4]) for line in maps if "busybox" in line}
    for at in boxes:
        at.__exit__(None, None, None)
    assert seen == {real.st_ino}


def _sleeper(box) -> int:
    box.start(["sleep", "600"], timeout_s=100)
    found: list[int] = []

    def missing() -> bool:
        for pid in box.host_processes():
            with suppress(OSError):  # It has ended meanwhile.
                if Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x00600\x00":
                    found.append(pid)
        return not found

    poll("no sleep", missing)
    return found[0]


@pytest.mark.promise("P52")
def test_mountinfo_of_an_image_shows_nothing_of_the_host(box, busybox):
    text = box.exec(["cat", "/proc/self/mountinfo"]).text
    root = next(line for line in text.splitlines() if line.split()[4] == "/")
    assert "lowerdir=l1:l0," in root
    assert box.id not in text
    for layer in busybox.layers:
        assert layer not in text
    assert posture.mount_deviations(text) == []


def test_the_layers_themselves_cannot_be_reached(box):
    """They are bound below the stage in the launcher's mounts, which are not visible inside."""
    answer = box.exec(["sh", "-c", "ls -d /l0 /l1 /mnt /newroot /oldroot 2>/dev/null"])
    assert answer.text == ""


@pytest.mark.root
def test_a_glibc_image_runs_its_own_programs(deb):
    assert deb.exec(["python3", "-c", "print(6 * 7)"]).text == "42\n"
    assert deb.exec("type -t shopt; echo $BASH_VERSION | cut -c1").text == "builtin\n5\n"
    assert deb.exec(["cat", "/etc/debian_version"]).text.startswith("12")


def test_the_path_is_the_images_own_when_it_has_one(make_box, roots, skeleton):
    tree = trees.busybox(roots / "pathed")
    (tree / "odd").mkdir()
    (tree / "odd" / "hello").write_text("#!/bin/sh\necho hello\n")
    (tree / "odd" / "hello").chmod(0o755)
    env = {"PATH": "/odd:/bin", "COLOUR": "blue", "HOME": "/home/sandbox"}
    with make_box(trees.image("pathed", tree, skeleton, env=env)) as box:
        assert box.exec(["hello"]).text == "hello\n"
        assert box.exec("hello; echo $COLOUR").text == "hello\nblue\n"


@pytest.mark.promise("P52")
def test_an_image_without_a_shell_runs_argv_commands_and_refuses_shell_commands(
    make_box, roots, skeleton
):
    tree = trees.busybox(roots / "shell-less", applets=["ls", "cat", "echo"])
    os.rename(tree / "bin" / "busybox", tree / "bin" / "tools")
    for name in ("ls", "cat", "echo"):
        (tree / "bin" / name).unlink()
        (tree / "bin" / name).symlink_to("tools")
    with make_box(trees.image("shell-less", tree, skeleton)) as box:
        assert box.exec(["echo", "ok"]).text == "ok\n"
        with pytest.raises(ShellNotFound) as caught:
            box.exec("echo ok")
        assert caught.value.hint == "the image has no shell; give the command as a list"
        box.write("/workspace/x", b"data")
        assert box.read("/workspace/x") == b"data"


@pytest.mark.promise("P52")
def test_a_shell_of_another_architecture_is_an_error_at_once(make_box, roots, skeleton):
    tree = roots / "foreign"
    (tree / "bin").mkdir(parents=True)
    # An ELF header for a machine nobody has.
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xfe\xff\x01\x00\x00\x00" + bytes(40)
    for name in ("sh", "program"):
        (tree / "bin" / name).write_bytes(header)
        (tree / "bin" / name).chmod(0o755)
    with make_box(trees.image("foreign", tree, skeleton)) as box:
        with pytest.raises(CommandNotExecutable):
            box.exec(["/bin/program"])
        with pytest.raises(ShellNotFound):
            box.exec("true")
        box.destroy()


def test_an_empty_image_supports_file_operations(make_box, roots, skeleton):
    (roots / "void").mkdir()
    with make_box(trees.image("void", roots / "void", skeleton)) as box:
        box.write("/workspace/x", b"1")
        assert [entry.name for entry in box.entries("/workspace")] == ["x"]
        box.destroy()


@pytest.mark.promise("P52")
def test_links_in_place_of_proc_and_dev_are_covered(make_box, roots, skeleton):
    tree = trees.busybox(roots / "linked")
    (tree / "hidden").mkdir()
    for name in ("proc", "dev", "tmp", "run", "workspace", "home"):
        (tree / name).symlink_to("hidden")
    with make_box(trees.image("linked", tree, skeleton)) as box:
        assert box.exec(["ls", "-A", "/hidden"]).text == ""
        assert box.exec(["cat", "/proc/self/comm"]).text == "cat\n"
        assert box.exec(["ls", "-ld", "/proc", "/dev"]).text.count("drwx") >= 1


@pytest.mark.promise("P52")
@pytest.mark.parametrize("name", ["proc", "dev", "tmp", "run", "workspace", "home"])
def test_an_uncovered_link_at_a_mount_point_is_refused_by_name(
    name, roots, loop, local, busybox, tmp_path
):
    """With an empty skeleton, a mount there would land somewhere else."""
    top = tmp_path / "top"
    top.mkdir()
    (top / name).symlink_to("bin")
    image = Image("linked", "layers", (*busybox.layers, str(top)))
    error = refused(local, loop, image, InvalidImage)
    assert f"/{name}" in error.message
    assert error.hint


def test_a_file_at_a_mount_point_is_refused_by_name(loop, local, busybox, tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    (top / "workspace").write_text("")
    error = refused(local, loop, Image("file", "layers", (*busybox.layers, str(top))), InvalidImage)
    assert "/workspace is not a plain directory in the image" in error.message


def test_missing_mount_points_are_created(make_box, roots):
    """Also without the skeleton: an image of one layer without any directory."""
    tree = trees.busybox(roots / "bare")
    with make_box(trees.image("bare", tree)) as box:
        assert box.exec(["sh", "-c", "cd /home/sandbox && touch x && ls /proc/self/comm"]).code == 0
        assert box.exec(["stat", "-c", "%u %a", "/tmp", "/home"]).text.split()[-2:] == [
            OWNER,
            "755",
        ]
    assert sorted(os.listdir(tree)) == ["bin"]


@pytest.mark.parametrize("layers", [(), ("/nonexistent/layer",)])
def test_missing_layers_are_refused(layers, loop, local):
    assert refused(local, loop, Image("gone", "layers", layers), InvalidImage).hint


def test_an_environment_cannot_smuggle_an_argument(loop, local, busybox):
    for env in ({"X": "a\0--bind\0/\0/host"}, {"A=B": "c"}, {"": "x"}):
        refused(local, loop, replace(busybox, env=env), InvalidImage)


def test_an_image_can_have_sixty_layers(make_box, roots, skeleton):
    layers = [trees.busybox(roots / "many")]
    for number in range(60):
        layer = roots / f"many-{number}"
        layer.mkdir()
        (layer / f"file-{number}").write_text(str(number))
        layers.append(layer)
    with make_box(trees.image("many", *layers, skeleton)) as box:
        assert box.exec(["cat", "/file-0", "/file-59"]).text == "059"


def test_layers_in_directories_with_unusual_names_work(make_box, roots, skeleton):
    odd = roots / "a:b,c\\d e"
    with make_box(trees.image("odd", trees.busybox(odd), skeleton)) as box:
        assert box.exec(["echo", "ok"]).text == "ok\n"


@pytest.mark.promise("P24")
def test_a_host_mount_is_read_only_at_its_target(make_box, busybox, roots):
    source = roots / "shown"
    source.mkdir()
    (source / "data").write_text("data")
    (roots / "file").write_text("file")
    mounts = (
        HostMount(str(source), "/opt/data"),
        HostMount(str(roots / "file"), "/srv/deep/file"),
    )
    for image in (busybox, Image("host")):
        with make_box(image, mounts=mounts) as box:
            shown = box.exec(["cat", "/opt/data/data", "/srv/deep/file"])
            assert (shown.text, shown.stderr) == ("datafile", b"")
            assert box.exec(["sh", "-c", "echo x > /opt/data/x"]).code != 0
            text = box.exec(["cat", "/proc/self/mountinfo"]).text
            (line,) = [n for n in text.splitlines() if n.split()[4] == "/opt/data"]
            assert {"ro", "nosuid", "nodev"} <= set(line.split()[5].split(","))
            assert posture.mount_deviations(text) == []
    assert sorted(os.listdir(source)) == ["data"]


def test_a_host_mount_below_a_link_of_the_image_is_refused(loop, local, busybox, roots, tmp_path):
    (tmp_path / "opt").symlink_to("bin")
    image = replace(busybox, layers=(str(tmp_path), *busybox.layers))
    error = refused(local, loop, image, InvalidImage, mounts=(HostMount(str(roots), "/opt/data"),))
    assert "/opt/data" in error.message


def test_the_dev_profile_is_refused_on_the_host_image(loop, local):
    error = refused(local, loop, Image("host"), UnsupportedByBackend, profile="dev")
    assert "image" in error.hint


@pytest.mark.promise("P04")
async def test_the_first_image_is_examined_and_the_second_is_not(tmp_path, busybox):
    local = LocalBackend(tmp_path)
    cell = await local.create(new_sandbox_id(), CellSpec(image=busybox))
    await cell.destroy()
    marks = sorted(p.name.rsplit("-", 2)[1:] for p in tmp_path.glob("selftest-*"))
    assert marks == [["image", "hardened"]]
    cell = await local.create(new_sandbox_id(), CellSpec(image=busybox))
    await cell.destroy()
    assert len(list(tmp_path.glob("selftest-*"))) == 1


async def test_concurrent_creates_leave_nothing(tmp_path, busybox):
    local = LocalBackend(tmp_path)
    ids = [new_sandbox_id() for _ in range(8)]
    cells = await asyncio.gather(*(local.create(i, CellSpec(image=busybox)) for i in ids))
    await asyncio.gather(*(cell.destroy() for cell in cells))
    assert list((tmp_path / "cells").iterdir()) == []
    shutil.rmtree(tmp_path)
