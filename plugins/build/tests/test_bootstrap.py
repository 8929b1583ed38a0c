"""Debian images from packages: the recipe, the host's sources, and mmdebstrap itself."""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from sandkasten.errors import BuildFailed, Cancelled, InvalidImage, InvalidRequest
from sandkasten_build.builder import debian_bootstrap
from sandkasten_build.builder.apt_sources import Source, machine_sources, sources_for
from sandkasten_build.builder.debian_bootstrap import (
    Bootstrap,
    DebianRecipe,
    command,
    debian_recipe,
)
from sandkasten_build.child_program import Child, Deadline, child_environment
from sandkasten_runtime.images.layers.image_store import LayerStore
from tests.patience import PATIENCE_S

OS_RELEASE = 'ID=debian\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Debian"\n'
DEB822 = """\
Types: deb deb-src
# a comment
URIs: http://m.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian.gpg

Types: deb
URIs: http://m.example/security
Suites: bookworm-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc

Types: deb
URIs: http://m.example/off
Suites: bookworm
Components: main
Enabled: no
"""
THIRD = """\
# deb http://m.example/debian bookworm main
deb-src http://m.example/debian bookworm main
deb [arch=amd64 signed-by=/k.gpg] http://third.example/apt cloud-sdk-bookworm main
deb http://third.example/node nodistro main
"""


@pytest.fixture
def etc(tmp_path) -> Path:
    """A machine whose apt knows Debian, in the new format, and two third parties in the old."""
    folder = tmp_path / "etc"
    (folder / "apt" / "sources.list.d").mkdir(parents=True)
    (folder / "os-release").write_text(OS_RELEASE)
    (folder / "apt" / "sources.list.d" / "debian.sources").write_text(DEB822)
    (folder / "apt" / "sources.list.d" / "third.list").write_text(THIRD)
    return folder


@pytest.fixture
def store(tmp_path) -> LayerStore:
    return LayerStore(tmp_path / "images")


# ---- sources -----------------------------------------------------------------------------------


def test_the_debian_sources_of_the_host_are_used(etc):
    assert sources_for("bookworm", etc) == [
        Source(
            "http://m.example/debian",
            "bookworm",
            ("main", "contrib"),
            "/usr/share/keyrings/debian.gpg",
        ),
        Source(
            "http://m.example/debian",
            "bookworm-updates",
            ("main", "contrib"),
            "/usr/share/keyrings/debian.gpg",
        ),
        Source("http://m.example/security", "bookworm-security", ("main",)),
    ]
    assert sources_for("bookworm", etc)[0].line() == (
        "deb [signed-by=/usr/share/keyrings/debian.gpg] "
        "http://m.example/debian bookworm main contrib"
    )


def test_another_suite_comes_from_the_same_mirrors(etc):
    assert [source.suite for source in sources_for("trixie", etc)] == [
        "trixie",
        "trixie-updates",
        "trixie-security",
    ]
    assert [source.suite for source in sources_for("sid", etc)] == ["sid"]


def test_a_suite_that_apt_knows_is_not_guessed(etc):
    line = "deb http://other.example/debian trixie main\n"
    (etc / "apt" / "sources.list").write_text(line)
    assert [source.line() for source in sources_for("trixie", etc)] == [line.strip()]


def test_a_host_that_is_not_debian_needs_a_mirror(etc):
    (etc / "os-release").write_text("ID=ubuntu\nVERSION_CODENAME=bookworm\n")
    assert len(machine_sources(etc)) == 5
    with pytest.raises(BuildFailed) as refused:
        sources_for("trixie", etc)
    assert "--mirror" in refused.value.hint


# ---- the recipe --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"suite": "--help"},
        {"suite": "../x"},
        {"suite": ""},
        {"include": ["--privileged"]},
        {"include": ["a b"]},
        {"include": ["a,b"]},
        {"include": ["?essential"]},
        {"variant": "minbas"},
        {"mirror": "ssh://h/x"},
        {"mirror": "--help"},
        {"mirror": "/srv/mirror"},
        {"mirror": "http://h/x\ndeb http://evil"},
        {"mirror": "deb http://h/x"},
        {"mirror": "http://user:secret@h/debian"},
        {"mirror": "deb https://user:secret@h/debian bookworm main"},
        {"mirror": "deb-src http://h/x bookworm main"},
    ],
)
def test_an_invalid_bootstrap_recipe_is_refused(wrong):
    with pytest.raises(InvalidRequest) as refused:
        debian_recipe(**{"suite": "bookworm", **wrong})
    assert "secret" not in str(refused.value)


def test_the_order_of_packages_does_not_matter():
    assert debian_recipe("bookworm", ["b", "a", "b"]) == DebianRecipe("bookworm", ("a", "b"))


@pytest.mark.parametrize("mode", ["root", "unshare"])
def test_the_command_follows_the_recipe(mode):
    recipe = debian_recipe("bookworm", ["python3", "git=1:2.39"], "minbase")
    isolated = [
        *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
        *("--propagation", "private", "--"),
    ]
    assert command(recipe, mode, Path("/s/sources.list"), Path("/s/apt.conf")) == [
        *(isolated if mode == "root" else []),
        "mmdebstrap",
        f"--mode={mode}",
        "--format=tar",
        "--variant=minbase",
        "--skip=output/dev",
        "--aptopt=/s/apt.conf",
        '--customize-hook=rm -f "$1/etc/resolv.conf" "$1/etc/hostname"',
        "--include=git=1:2.39,python3",
        "bookworm",
        "-",
        "/s/sources.list",
    ]


def test_the_extract_variant_removes_host_files_in_an_extract_hook():
    recipe = debian_recipe("bookworm", variant="extract")
    words = command(recipe, "root", Path("/s/sources.list"), Path("/s/apt.conf"))
    assert '--extract-hook=rm -f "$1/etc/resolv.conf" "$1/etc/hostname"' in words
    assert not [word for word in words if word.startswith("--customize-hook")]


def test_a_file_mirror_is_copied_from():
    recipe = debian_recipe("bookworm", mirror="file:///srv/file:/mirror")
    words = command(recipe, "root", Path("/s/sources.list"), Path("/s/apt.conf"))
    assert words[-3:] == ["bookworm", "-", "copy:///srv/file:/mirror"]


def test_a_helper_program_gets_only_the_proxies_of_our_environment():
    environ = {"SECRET": "x", "https_proxy": "http://p", "NO_PROXY": "", "HOME": "/root"}
    assert child_environment(environ, TMPDIR="/t") == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C.UTF-8",
        "https_proxy": "http://p",
        "TMPDIR": "/t",
    }


def test_a_missing_mmdebstrap_is_reported_with_the_package_to_install(store, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildFailed) as refused:
        Bootstrap(store).build("d", debian_recipe("bookworm"))
    assert refused.value.hint == "apt-get install mmdebstrap"


def test_a_user_who_cannot_bootstrap_gets_a_hint_about_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 59_871)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildFailed) as refused:
        debian_bootstrap.bootstrap_mode()
    way_out = "; or build as root, or install fakechroot and fakeroot"
    range_ = debian_bootstrap._RANGE
    assert refused.value.hint == f"{debian_bootstrap._UIDMAP} and {range_}{way_out}"
    for name in ("newuidmap", "newgidmap"):
        (tmp_path / name).touch(0o755)
    with pytest.raises(BuildFailed) as refused:
        debian_bootstrap.bootstrap_mode()
    assert refused.value.hint == range_ + way_out
    for name in ("fakechroot", "fakeroot"):
        (tmp_path / name).touch(0o755)
    assert debian_bootstrap.bootstrap_mode() == "fakechroot"


# ---- helpers as streams ------------------------------------------------------------------------


def child(*argv: str, whole_s: float = 60, deadline: Deadline | None = None) -> Child:
    return Child(
        argv,
        env=child_environment({}),
        deadline=deadline or Deadline(whole_s),
        what="it",
    )


def test_a_listener_that_is_cancelled_ends_quietly():
    failures: list[object] = []

    def report(_: str) -> None:
        raise Cancelled("the image operation was cancelled")

    hook, threading.excepthook = threading.excepthook, failures.append
    try:
        stream = Child(
            ["sh", "-c", "echo line >&2; exec sleep 60"],
            env=child_environment({}),
            deadline=Deadline(60),
            what="it",
            report=report,
        )
        with stream:
            stream._listener.join(PATIENCE_S)
    finally:
        threading.excepthook = hook
    assert failures == []


def test_a_failing_program_raises_at_the_end_of_its_stream_with_its_output():
    with child("sh", "-c", "echo data; echo why >&2; exit 3") as stream:
        assert stream.read() == b"data\n"
        with pytest.raises(BuildFailed) as failed:
            stream.read()
    assert failed.value.message == "it failed with status 3:\nwhy"


def test_a_program_and_its_children_are_dead_after_the_block(monkeypatch):
    monkeypatch.setattr("sandkasten_build.child_program._GRACE_S", 0.5)
    with child("sh", "-c", "trap '' TERM; sleep 600 & echo $!; wait; wait") as stream:
        pid = int(stream.read())
    # What was killed may have to wait for a processor to die on.
    deadline = time.monotonic() + PATIENCE_S
    while (line := _read(Path(f"/proc/{pid}/cmdline"))) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert line == b""


def test_a_silent_program_can_be_cancelled_at_once():
    deadline = Deadline(60)
    with child("sleep", "600", deadline=deadline) as stream:
        threading.Timer(0.1, deadline.called_off.set).start()
        with pytest.raises(Cancelled):
            stream.read()


# ---- the real thing ----------------------------------------------------------------------------


@pytest.fixture
def mirror(tmp_path) -> str:
    """A mirror of one package, made here, as a line of sources.list."""
    root = tmp_path / "mirror"
    package = tmp_path / "package"
    (package / "DEBIAN").mkdir(parents=True)
    control = "Package: tiny\nVersion: 1\nArchitecture: all\nMaintainer: t <t@example.org>\n"
    (package / "DEBIAN" / "control").write_text(f"{control}Description: tiny\n")
    (package / "opt").mkdir()
    (package / "opt" / "tiny").write_text("tiny\n")
    index = root / "dists" / "stable" / "main" / "binary-amd64"
    index.mkdir(parents=True)
    deb = root / "tiny.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-b", package, deb], check=True, capture_output=True
    )
    data = deb.read_bytes()
    (index / "Packages").write_text(
        f"{control}Description: tiny\nFilename: ./tiny.deb\nSize: {len(data)}\n"
        f"SHA256: {hashlib.sha256(data).hexdigest()}\n"
    )
    listed = (index / "Packages").read_bytes()
    native = subprocess.run(
        ["dpkg", "--print-architecture"], check=True, capture_output=True, text=True
    ).stdout.strip()
    index.rename(index.with_name(f"binary-{native}"))
    (root / "dists" / "stable" / "Release").write_text(
        "Suite: stable\nCodename: stable\nDate: Tue, 02 Jan 2024 03:04:05 UTC\n"
        f"Architectures: {native}\nComponents: main\nSHA256:\n"
        f" {hashlib.sha256(listed).hexdigest()} {len(listed)} main/binary-{native}/Packages\n"
    )
    return f"deb [trusted=yes] file://{root} stable main"


def recipe_of(mirror: str) -> DebianRecipe:
    return debian_recipe("stable", ["tiny"], "extract", mirror)


def litter(store: LayerStore) -> list[str]:
    making = store.root / "making"
    return os.listdir(making) if making.is_dir() else []


def test_an_image_is_built_from_a_file_mirror(store, mirror):
    lines: list[str] = []
    built = Bootstrap(store).build(
        "tiny:1", recipe_of(mirror), progress=lambda event: lines.append(event.text)
    )
    assert (built.cached, built.image.names) == (False, ("tiny:1",))
    assert built.image.source == "debian stable extract tiny"
    tree = Path(store.trees(built.image)[0])
    assert (tree / "opt" / "tiny").read_text() == "tiny\n"
    # Nothing of the machine that built it is in it.
    assert not (tree / "etc" / "resolv.conf").exists()
    assert not (tree / "etc" / "hostname").exists()
    assert any("mmdebstrap" in line or line.startswith("I:") for line in lines)
    assert litter(store) == []


@pytest.mark.promise("P53")
def test_the_same_recipe_is_cached_and_a_refresh_gives_the_same_image(store, mirror):
    make = Bootstrap(store)
    first = make.build("tiny:1", recipe_of(mirror))
    lines: list[str] = []
    again = make.build("tiny:2", recipe_of(mirror), progress=lambda event: lines.append(event.text))
    assert again.cached
    assert not [line for line in lines if "mmdebstrap" in line or line.startswith("I:")]
    assert again.image.id == first.image.id
    assert again.image.names == ("tiny:1", "tiny:2")
    fresh = make.build("tiny:1", recipe_of(mirror), refresh=True)
    assert (fresh.cached, fresh.image.id) == (False, first.image.id)


@pytest.mark.long(reason="`make test` has the cached recipe")
def test_another_recipe_and_a_removed_image_are_built(store, mirror):
    make = Bootstrap(store)
    first = make.build("tiny:1", recipe_of(mirror))
    bare = make.build("bare:1", debian_recipe("stable", [], "extract", mirror))
    assert (bare.cached, bare.image.id != first.image.id) == (False, True)
    store.remove("tiny:1", in_use=frozenset())
    store.collect(frozenset())
    assert make.build("tiny:1", recipe_of(mirror)).cached is False


def test_a_failed_bootstrap_gives_the_reason_and_leaves_nothing(store, mirror):
    with pytest.raises(BuildFailed) as failed:
        Bootstrap(store).build("x", debian_recipe("stable", ["no-such-package"], "extract", mirror))
    assert "Unable to locate package no-such-package" in failed.value.message
    assert (litter(store), store.list()) == ([], [])
    assert os.listdir(store.root / "layers") == []


def test_an_invalid_name_is_refused_before_anything_is_done(store, mirror):
    updates: list[object] = []
    with pytest.raises(InvalidImage):
        Bootstrap(store).build("--privileged", recipe_of(mirror), progress=updates.append)
    assert (updates, litter(store), store.list()) == ([], [], [])


@pytest.mark.promise("P53")
def test_a_cancelled_bootstrap_leaves_no_process_mount_or_file(store, mirror):
    called_off = threading.Event()
    with pytest.raises(Cancelled):
        Bootstrap(store).build(
            "x", recipe_of(mirror), called_off=called_off, progress=lambda _: called_off.set()
        )
    assert (litter(store), store.list()) == ([], [])
    assert str(store.root) not in Path("/proc/self/mountinfo").read_text()
    here = str(store.root).encode()
    deadline = time.monotonic() + PATIENCE_S
    while alive := [p for p in Path("/proc").glob("[0-9]*/environ") if here in _read(p)]:
        assert time.monotonic() < deadline, [_read(p.with_name("cmdline")) for p in alive]
        time.sleep(0.02)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.timeout(600)
@pytest.mark.long(reason="`make test` builds its images from a mirror of files")
def test_a_debian_from_the_hosts_mirror_has_the_requested_packages(store, full_size):
    variant, include = ("minbase", ["python3-minimal"]) if full_size else ("extract", ["dash"])
    built = Bootstrap(store).build("debian:12", debian_recipe("bookworm", include, variant))
    tree = Path(store.trees(built.image)[0])
    program = "usr/bin/python3" if full_size else "bin/dash"
    assert (tree / program).exists() or (tree / "usr" / program).exists()
    assert (tree / "usr/share/doc").is_dir()
    if full_size:
        again = Bootstrap(store).build(
            "debian:12", debian_recipe("bookworm", include), refresh=True
        )
        assert again.image.id == built.image.id
