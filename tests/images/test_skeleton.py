"""The skeleton layer that Sandkasten adds to every image."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import pytest

from sandkasten_runtime.images.archives.archive_import import architecture_of
from sandkasten_runtime.images.layers.image_store import ImageConfig, LayerStore
from sandkasten_runtime.images.layers.overlay import has_program, read_merged
from sandkasten_runtime.images.layers.skeleton import (
    MAX_ACCOUNTS_BYTES,
    group,
    home_is_free,
    make_build_skeleton,
    passwd,
)
from tests.imagekit import MACHINE, busybox_tar, empty_tar, layer, odd_tar

PASSWD = b"root:x:0:0:root:/root:/bin/bash\n"


def skeleton(store: LayerStore, *layers: bytes) -> Path:
    ids = [store.add_layer(io.BytesIO(one)).diff_id for one in layers]
    return Path(store.trees(store.put_image(ids, ImageConfig(), ["x"]))[-1])


def trees(store: LayerStore, *layers: bytes) -> list[str]:
    return [store.tree(store.add_layer(io.BytesIO(one)).diff_id) for one in layers]


@pytest.mark.promise("P52")
def test_the_skeleton_has_every_mount_point(store):
    made = skeleton(store, layer({"x": b""}))
    for name in ("proc", "dev", "sys", "run", "tmp", "etc", "var", "home", "workspace"):
        assert stat.S_ISDIR((made / name).lstat().st_mode), name
    assert stat.S_IMODE((made / "tmp").lstat().st_mode) == 0o1777
    assert os.readlink(made / "work") == "workspace"
    assert os.readlink(made / "var" / "tmp") == "../tmp"
    for name in ("workspace", "home/sandbox", "home/user"):
        assert ((made / name).stat().st_uid, (made / name).stat().st_gid) == (1000, 1000)
    assert (made / "etc").stat().st_uid == 0
    assert (made / "etc" / "hostname").read_text() == "sandbox\n"
    assert (made / "etc" / "resolv.conf").read_text() == ""


def test_an_images_own_home_of_that_name_stays(store):
    made = skeleton(store, layer({"home": None, "home/user": None, "home/user/a": b"1"}))
    assert not os.path.lexists(made / "home" / "user")
    assert not home_is_free([str(made)])


def test_a_link_of_an_older_skeleton_is_no_mount_point(tmp_path, store):
    made = skeleton(store, layer({"x": b""}))
    assert home_is_free([str(made)])
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "user").symlink_to("../workspace")
    assert not home_is_free([str(tmp_path)])


@pytest.mark.promise("P52")
def test_links_of_an_image_are_hidden_and_never_followed(store):
    data = odd_tar().read_bytes()
    made = skeleton(store, data)
    for name in ("proc", "dev", "sys", "run", "tmp", "workspace"):
        assert stat.S_ISDIR((made / name).lstat().st_mode), name
    # Its /etc/passwd leads to the host's; what we took from it must not.
    assert (made / "etc" / "passwd").read_text().splitlines() == [
        "root:x:0:0:root:/root:/bin/sh",
        "nobody:x:65534:65534:nobody:/:/bin/false",
        "sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/sh",
        "runner:x:999:999:runner:/:/bin/false",
    ]


@pytest.mark.promise("P53")
@pytest.mark.parametrize("target", ["/", "..", "/srv", "/none", "tmp", None, b"", "/etc/passwd"])
def test_what_an_image_has_in_the_place_of_a_mount_point_is_hidden_in_a_build(
    store, tmp_path, target
):
    found = trees(store, layer({"srv": None, "tmp": target, "etc": target, "opt": target}))
    made = tmp_path / "made"
    made.mkdir()
    make_build_skeleton(made, found, ["/opt/a/b"])
    for name in ("proc", "dev", "sys", "run", "tmp", "root", "etc", "opt/a/b"):
        assert stat.S_ISDIR((made / name).lstat().st_mode), name
    assert (made / "etc" / "hosts").read_text().startswith("127.0.0.1 ")
    assert not (made / "etc" / "passwd").exists()
    if target is not None:
        assert stat.S_IMODE((made / "tmp").stat().st_mode) == 0o1777


def test_the_images_own_accounts_stay_and_ours_are_added(store):
    made = skeleton(store, layer({"etc": None, "etc/passwd": PASSWD, "etc/group": b"staff:x:50:"}))
    assert (made / "etc" / "passwd").read_bytes().startswith(PASSWD)
    assert b"\nsandbox:x:1000:1000:" in (made / "etc" / "passwd").read_bytes()
    assert (made / "etc" / "group").read_text() == ("staff:x:50:\nsandbox:x:1000:\nrunner:x:999:\n")


def test_an_account_with_our_user_id_is_not_changed():
    found = passwd(b"me:x:1000:1000::/home/me:/bin/zsh\nthey:x:999:999::/:/bin/sh\n", "/bin/sh")
    assert found == b"me:x:1000:1000::/home/me:/bin/zsh\nthey:x:999:999::/:/bin/sh\n"


def test_accounts_over_the_size_limit_end_with_a_complete_line():
    line = b"u%d:x:%d:%d::/:/bin/sh\n"
    many = b"".join(line % (n, n + 2000, n) for n in range(60_000))[:MAX_ACCOUNTS_BYTES]
    assert all(one.count(b":") == 6 for one in passwd(many, "/bin/sh").splitlines())
    assert passwd(b"no colon at all\n", "/bin/sh").startswith(b"no colon at all\nsandbox")
    assert group(None).endswith(b"sandbox:x:1000:\nrunner:x:999:\n")


@pytest.mark.promise("P52")
@pytest.mark.parametrize(
    ("layers", "seen"),
    [
        ([{"etc": None, "etc/passwd": b"low"}, {"etc": None, "etc/passwd": b"high"}], b"high"),
        ([{"etc": None, "etc/passwd": b"low"}, {"etc": None, "etc/x": b""}], b"low"),
        ([{"etc": None, "etc/passwd": b"low"}, {"etc": None, "etc/.wh.passwd": b""}], None),
        ([{"etc": None, "etc/passwd": b"low"}, {".wh.etc": b""}], None),
        ([{"etc": None, "etc/passwd": b"low"}, {"etc": None, "etc/.wh..wh..opq": b""}], None),
        ([{"etc": None, "etc/passwd": b"low"}, {"etc": b"a file"}], None),
        ([{"real": None, "real/passwd": b"there"}, {"etc": "real"}], b"there"),
        ([{"real": None, "real/passwd": b"there"}, {"etc": "/../../real"}], b"there"),
        ([{"p": b"there"}, {"etc": None, "etc/passwd": "../../../p"}], b"there"),
        ([{"etc": None, "etc/passwd": "passwd"}], None),
        ([{"etc": None, "etc/passwd": "/proc/self/environ"}], None),
        ([{"etc": None, "etc/passwd": None}], None),
    ],
)
def test_a_file_is_read_as_the_layers_would_show_it(store, layers, seen):
    found = trees(store, *(layer(one) for one in layers))
    assert read_merged(found, "/etc/passwd", 100) == seen


def test_the_shell_of_the_account_exists_in_the_image(store):
    bash = layer({"usr": None, "usr/bin": None, "bin": "usr/bin", "usr/bin/bash": b"#!"})
    assert not has_program(trees(store, bash), "/bin/bash")
    assert has_program(trees(store, busybox_tar().read_bytes()), "/bin/sh")


def test_the_architecture_of_a_tree_is_read_from_its_programs(store):
    assert architecture_of(trees(store, busybox_tar().read_bytes())) == MACHINE
    assert architecture_of(trees(store, empty_tar().read_bytes())) == MACHINE
    foreign = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00" + (183).to_bytes(2, "little")
    assert architecture_of(trees(store, layer({"bin": None, "bin/sh": foreign}))) == "arm64"
    assert architecture_of(trees(store, layer({"x": b"#!/bin/sh"}))) == ""
    assert architecture_of(trees(store, layer({"bin": "/bin"}))) == ""
