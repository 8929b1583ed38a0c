"""Volumes of an ordinary user: a kept directory, no kept image, no dev profile.

Collected only without root; `test_as_ordinary_user` runs it.
"""

from __future__ import annotations

import pytest

from sandkasten.errors import BackendUnavailable, UnsupportedByBackend
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import Volume


def test_a_kept_directory_belongs_to_the_user(make_box, busybox, tmp_path):
    volume = Volume(str(tmp_path), "directory")
    with make_box(Image("host"), workspace=volume) as box:
        box.exec("echo one > /workspace/x; echo two > ~/y")
    assert (tmp_path / "workspace" / "x").read_text() == "one\n"
    with make_box(busybox, workspace=volume) as box:
        assert box.exec("cat /workspace/x ~/y").text == "one\ntwo\n"
        text = box.exec(["cat", "/proc/self/mountinfo"]).text
        (line,) = [n for n in text.splitlines() if n.split()[4] == "/workspace"]
        assert {"nosuid", "nodev"} <= set(line.split()[5].split(","))


def test_a_kept_image_is_refused_by_name(make_box, tmp_path):
    with pytest.raises(BackendUnavailable, match="loop device") as caught:
        make_box(Image("host"), workspace=Volume(str(tmp_path / "v"), "image")).__enter__()
    assert "directory" in caught.value.hint


def test_the_dev_profile_is_refused_by_name(make_box, busybox):
    with pytest.raises(UnsupportedByBackend, match="range of ids") as caught:
        make_box(busybox, profile="dev").__enter__()
    assert "root" in caught.value.hint


@pytest.mark.promise("P06")
def test_every_writable_memory_has_a_limit_on_its_files(make_box, busybox):
    for image in (Image("host"), busybox):
        with make_box(image) as box:
            text = box.exec(["cat", "/proc/self/mountinfo"]).text
            writable = {}
            for line in text.splitlines():
                before, _, after = line.partition(" - ")
                point, options = before.split()[4:6]
                if after.split()[0] == "tmpfs" and "rw" in options.split(","):
                    said = box.exec(["stat", "-f", "-c", "%c", point]).text
                    writable[point] = int(said)
            assert set(writable) == {
                "/workspace", "/home/sandbox", "/tmp", "/dev/shm", "/run/sandkasten",
            }  # fmt: skip
            assert max(writable.values()) <= 32_768
            made = box.exec("cd /tmp; for n in $(seq 20000); do : >f$n || break; done")
            assert b"No space left" in made.stderr
