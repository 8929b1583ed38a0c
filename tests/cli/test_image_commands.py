"""`image …`: what it prints, its JSON output, and its failures."""

from __future__ import annotations

import json
import os

import pytest

from tests.cli.conftest import UNISOLATED
from tests.cli.terminal import Person
from tests.imagekit import (
    busybox_tar,
    debian_tar,
    docker_members,
    foreign_archive,
    sketch,
    write_tar,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def archive(tmp_path) -> str:
    return str(write_tar(tmp_path / "archive.tar", docker_members(sketch())))


def test_an_image_is_imported_used_and_removed(cli, archive, tmp_path):
    assert cli("image", "ls").out.split()[:2] == ["NAME", "ID"]
    done = cli("image", "import", archive)
    assert (done.status, done.out) == (0, "sketch:1\n")
    assert "in 3 layers" in done.err
    name, the_id, *_ = cli("image", "ls").out.splitlines()[1].split()
    assert (name, len(the_id)) == ("sketch:1", 12)
    assert cli("image", "tag", the_id, "other").out.split() == ["other:latest", "sketch:1"]
    shown = cli("image", "inspect", "other").out
    for words in ("linux/", "A=1", "docker-archive", "LAYER"):
        assert words in shown
    out = str(tmp_path / "out.tar")
    written = cli("image", "export", "other", out, "--format", "oci")
    assert written.out.startswith("sha256:")
    assert out in written.err
    assert "without sharing" in cli("image", "du").out
    assert cli("image", "rm", "other", "sketch:1").out.split() == ["other:latest", "sketch:1"]
    assert cli("image", "gc").err.startswith("removed 0 images and 0 layers")
    assert cli("image", "import", out, "--name", "again").status == 0


def test_every_json_answer_is_one_document(cli, archive, tmp_path):
    def told(*words: str):
        done = cli("image", *words, "--json")
        assert (done.status, done.err) == (0, ""), words
        return json.loads(done.out)

    [image] = told("import", archive)
    assert image["names"] == ["sketch:1"]
    assert [one["id"] for one in told("ls")] == [image["id"]]
    assert told("inspect", "sketch:1") == image
    assert told("tag", "sketch:1", "b")["names"] == ["b:latest", "sketch:1"]
    assert told("export", "b", str(tmp_path / "out"))["path"] == str(tmp_path / "out")
    assert told("du")["layers"] == 3
    assert told("rm", "b")["removed"][0]["deleted"] is False
    assert told("rm", image["id"])["removed"][0]["freed_bytes"] > 0
    assert told("gc") == {"images": [], "layers": [], "freed_bytes": 0}


def test_one_name_that_fails_does_not_stop_the_others(cli, archive):
    cli("image", "import", archive)
    done = cli("image", "rm", "nothing", "sketch:1")
    assert (done.status, done.out) == (125, "sketch:1\n")
    assert "nothing is not in the store" in done.err
    told = json.loads(cli("image", "rm", "nothing", "--json").out)
    assert told["failed"][0]["code"] == "IMAGE_NOT_FOUND"


@pytest.mark.parametrize(
    "words",
    [
        ("import", "/nowhere"),
        ("import", "/dev/null"),
        ("inspect", "nothing"),
        ("inspect", "../x"),
        ("inspect", "x" * 10_000),
        ("export", "nothing", "/tmp/x"),
        ("tag", "nothing", "x"),
        ("inspect", "--", "--privileged"),
        ("rm", "--", "--privileged"),
    ],
)
def test_a_failure_is_one_line_and_a_hint(cli, words):
    done = cli("image", *words)
    assert (done.status, done.out) == (125, "")
    assert [line.split(":")[0] for line in done.err.splitlines()] == ["error", "hint"]
    assert len(done.err) < 600


def test_a_root_file_system_needs_a_name(cli):
    done = cli("image", "import", str(busybox_tar()))
    assert "--name" in done.err
    assert cli("image", "import", str(busybox_tar()), "--name", "busybox").out == "busybox:latest\n"


def test_an_image_for_another_architecture_is_stored_and_not_run(cli):
    assert cli("image", "import", str(foreign_archive())).status == 0
    done = cli("create", "--image", "foreign:1")
    assert done.status == 125
    assert "this machine is" in done.err


@pytest.mark.long(reason="`make test` has it for a pull")
def test_a_terminal_gets_a_bar_and_a_pipe_plain_lines(cli, archive):
    with Person([*UNISOLATED, "image", "import", str(debian_tar()), "--name", "big"]) as person:
        person.wait_for("layer 1/1")
        person.wait_for("MB/s")
        assert person.status() == 0
    piped = cli("image", "import", archive).err
    assert "\x1b" not in piped
    assert piped.splitlines()[:3] == ["layer 1/3", "layer 2/3", "layer 3/3"]


@pytest.mark.promise("P49")
def test_ctrl_c_stops_an_import_and_leaves_nothing(tmp_path):
    with Person([*UNISOLATED, "image", "import", str(debian_tar()), "--name", "big"]) as person:
        person.wait_for("layer 1/1")
        person.type("\x03")
        assert person.status() == 130
    assert os.listdir(tmp_path / "data" / "images" / "making") == []
    assert os.listdir(tmp_path / "data" / "images" / "names") == []
