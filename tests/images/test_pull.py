"""Pulling images from docker-registry into the store: complete, verified, nothing twice."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import (
    InvalidImage,
    QuotaExceeded,
    RegistryUnavailable,
    Unauthorized,
)
from sandkasten_runtime.images.layers.image_store import LayerStore
from sandkasten_runtime.images.registry.puller import Puller
from sandkasten_runtime.images.registry.registry_credentials import Access, Keyring
from sandkasten_runtime.images.registry.registry_http import Patience
from tests.imagekit import skopeo
from tests.images import registries
from tests.images.registries import HERE, PASSWORD, USER, Asked, Running
from tests.images.registry_access import QUICK
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sandkasten.model.images.image_info import ImageProgress

OTHER = "s390x" if HERE != "s390x" else "amd64"
BOTTOM = registries.layer({"etc/motd": b"below\n", "both": b"below\n"})
MIDDLE = registries.layer({"both": b"above\n", "big": os.urandom(2_000_000)})
TOP = registries.layer({"top": b"top\n"})
MADE = registries.image(BOTTOM, MIDDLE, TOP, architecture=HERE)


@pytest.fixture(scope="module")
def plain_registry(tmp_path_factory) -> Iterator[Running]:
    with registries.docker_registry(tmp_path_factory.mktemp("plain")) as running:
        registries.push(running.base, "team/app", "1", MADE)
        yield running


def puller(store: LayerStore, **access: Access) -> Puller:
    return Puller(store, Keyring(access, environ={}), patience=QUICK, environ={})


def kept(store: LayerStore) -> list[str]:
    """Return all layers, records and partial files in the store."""
    return sorted(
        f"{folder}/{name}"
        for folder in ("layers", "records", "names", "making")
        if (store.root / folder).is_dir()
        for name in os.listdir(store.root / folder)
    )


async def test_a_pulled_image_is_in_the_store_under_its_name(plain_registry, store):
    image = await puller(store).pull(f"{plain_registry.host}/team/app:1")
    assert image.names == (f"{plain_registry.host}/team/app:1",)
    assert image.layers == MADE.diff_ids
    assert image.source == f"{plain_registry.host}/team/app@{MADE.digest}"
    assert (dict(image.config.env), image.config.workdir) == ({"A": "1"}, "/srv")
    assert store.find(f"{plain_registry.host}/team/app:1") == image
    trees = [Path(tree) for tree in store.trees(image)]
    assert (trees[0] / "both").read_bytes() == b"below\n"
    assert (trees[1] / "both").read_bytes() == b"above\n"
    assert (trees[2] / "top").read_bytes() == b"top\n"
    assert os.listdir(store.root / "making") == []


@pytest.mark.promise("P48")
async def test_a_second_pull_fetches_only_the_manifest(registry_front, store):
    name = f"{registry_front.host}/team/app:1"
    first = await puller(store).pull(name)
    registry_front.seen.clear()
    told: list[ImageProgress] = []
    assert await puller(store).pull(name, progress=told.append) == first
    config = json.loads(MADE.manifest)["config"]["digest"]
    assert [path.rpartition("/")[2] for path in registry_front.paths("/blobs/")] == [config]
    assert [one.step.endswith("(already here)") for one in told] == [True] * 3


async def test_layers_shared_with_another_image_are_not_fetched_again(
    registry_front, plain_registry, store
):
    await puller(store).pull(f"{registry_front.host}/team/app:1")
    more = registries.image(BOTTOM, MIDDLE, registries.layer({"new": b"x"}), architecture=HERE)
    registries.push(plain_registry.base, "team/more", "1", more)
    registry_front.seen.clear()
    image = await puller(store).pull(f"{registry_front.host}/team/more:1")
    assert image.layers == more.diff_ids
    config = json.loads(more.manifest)["config"]["digest"]
    fetched = {path.rpartition("/")[2] for path in registry_front.paths("/blobs/")}
    assert fetched == {config, more.layers[2]}


async def test_a_layer_that_occurs_twice_is_fetched_once(registry_front, plain_registry, store):
    twice = registries.image(TOP, BOTTOM, TOP, architecture=HERE)
    registries.push(plain_registry.base, "team/twice", "1", twice)
    assert (
        await puller(store).pull(f"{registry_front.host}/team/twice:1")
    ).layers == twice.diff_ids
    assert len(registry_front.paths(twice.layers[0])) == 1


async def test_progress_starts_at_zero_and_ends_complete(plain_registry, store):
    told: list[ImageProgress] = []
    await puller(store).pull(f"{plain_registry.host}/team/app:1", progress=told.append)
    for digest in MADE.layers:
        mine = [one for one in told if digest.removeprefix("sha256:")[:12] in one.step]
        size = len(MADE.blobs[digest])
        assert (mine[0].done, mine[-1].done) == (0, size)
        assert {one.total for one in mine} == {size}
        assert [one.done for one in mine] == sorted(one.done for one in mine)


async def test_a_pinned_image_is_kept_under_its_digest(plain_registry, store):
    name = f"{plain_registry.host}/team/app@{MADE.digest}"
    image = await puller(store).pull(f"{plain_registry.host}/team/app:1@{MADE.digest}")
    assert image.names == (name,)
    assert store.find(name) == image


@pytest.mark.promise("P49")
async def test_a_manifest_that_does_not_match_its_digest_leaves_nothing(registry_front, store):
    other = registries.image(TOP, architecture=HERE)

    def rule(asked: Asked) -> None:
        if "/manifests/" in asked.path:
            asked.answer(200, {"Content-Type": other.media_type}, other.manifest)
        else:
            asked.pass_on()

    registry_front.rule = rule
    with pytest.raises(InvalidImage) as refused:
        await puller(store).pull(f"{registry_front.host}/team/app@{MADE.digest}")
    assert MADE.digest in refused.value.message
    assert kept(store) == []


@pytest.mark.parametrize("docker", [False, True])
async def test_the_image_for_the_hosts_platform_is_chosen_from_an_index(
    plain_registry, store, docker
):
    foreign = registries.image(BOTTOM, architecture=OTHER, docker=docker)
    mine = registries.image(TOP, architecture=HERE, docker=docker)
    repository = f"team/list-{docker}".lower()
    for tag, made in (("a", foreign), ("b", mine)):
        registries.push(plain_registry.base, repository, tag, made)
    data, kind = registries.index({f"linux/{OTHER}": foreign, f"linux/{HERE}": mine}, docker=docker)
    registries.put_manifest(plain_registry.base, repository, "1", data, kind)
    name = f"{plain_registry.host}/{repository}:1"
    image = await puller(store).pull(name)
    assert (image.layers, image.config.architecture) == (mine.diff_ids, HERE)
    assert image.source == f"{plain_registry.host}/{repository}@{registries.sha256(data)}"
    wished = await puller(store).pull(name, platform=f"linux/{OTHER}")
    assert (wished.layers, wished.config.architecture) == (foreign.diff_ids, OTHER)
    with pytest.raises(InvalidImage) as refused:
        await puller(store).pull(name, platform="linux/mips64le")
    assert refused.value.message.endswith("is not made for linux/mips64le")


async def test_an_image_for_another_platform_is_refused_unless_requested(plain_registry, store):
    registries.push(
        plain_registry.base, "team/foreign", "1", registries.image(TOP, architecture=OTHER)
    )
    name = f"{plain_registry.host}/team/foreign:1"
    with pytest.raises(InvalidImage) as refused:
        await puller(store).pull(name)
    assert f"linux/{HERE}" in refused.value.message
    assert f"linux/{OTHER}" in refused.value.hint
    assert (await puller(store).pull(name, platform=f"linux/{OTHER}")).config.architecture == OTHER


def _tampered(change) -> Callable[[Asked], None]:
    def rule(asked: Asked) -> None:
        digest = asked.path.rpartition("/")[2]
        if digest == MADE.layers[1]:
            asked.answer(200, {}, change(MADE.blobs[digest]))
        else:
            asked.pass_on()

    return rule


@pytest.mark.promise("P49")
@pytest.mark.parametrize(
    "change",
    [
        lambda blob: blob[:-1] + bytes([blob[-1] ^ 1]),
        lambda blob: gzip.compress(BOTTOM, mtime=0),
        lambda blob: b"\0" * len(blob),
        lambda blob: blob + b"more",
    ],
)
async def test_a_layer_that_does_not_match_its_digest_leaves_no_image_and_no_tree(
    registry_front, store, change
):
    registry_front.rule = _tampered(change)
    with pytest.raises(InvalidImage):
        await puller(store).pull(f"{registry_front.host}/team/app:1")
    layers = {f"layers/{one.removeprefix('sha256:')}" for one in MADE.diff_ids}
    assert not [one for one in kept(store) if one.startswith(("records/", "names/", "making/"))]
    # Its neighbours are what they are called, and may stay for the next attempt.
    assert set(kept(store)) <= layers - {f"layers/{MADE.diff_ids[1].removeprefix('sha256:')}"}


async def test_a_configuration_with_wrong_layer_digests_leaves_nothing(plain_registry, store):
    good = json.loads(MADE.manifest)
    wrong = registries.image(TOP, BOTTOM, TOP, architecture=HERE)
    mixed = {**good, "config": json.loads(wrong.manifest)["config"]}
    registries.push(plain_registry.base, "team/lies", "a", MADE)
    registries.push(plain_registry.base, "team/lies", "b", wrong)
    registries.put_manifest(
        plain_registry.base, "team/lies", "1", json.dumps(mixed).encode(), MADE.media_type
    )
    with pytest.raises(InvalidImage) as refused:
        await puller(store).pull(f"{plain_registry.host}/team/lies:1")
    assert "expected" in refused.value.message
    assert not [one for one in kept(store) if one.startswith(("records/", "names/", "making/"))]


async def test_a_registry_that_dies_in_the_middle_leaves_nothing_half_made(registry_front, store):
    registry_front.rule = lambda asked: asked.pass_on(
        at_most=100 if asked.path.endswith(MADE.layers[1]) else None, ranges=False
    )
    with pytest.raises(RegistryUnavailable) as refused:
        await puller(store).pull(f"{registry_front.host}/team/app:1")
    assert "broke off" in refused.value.message
    assert not [one for one in kept(store) if one.startswith(("records/", "names/", "making/"))]
    registry_front.rule = Asked.pass_on
    assert (await puller(store).pull(f"{registry_front.host}/team/app:1")).layers == MADE.diff_ids


@pytest.mark.promise("P48")
async def test_a_broken_download_resumes_where_it_broke(registry_front, store):
    size = len(MADE.blobs[MADE.layers[1]])
    registry_front.rule = lambda asked: asked.pass_on(
        at_most=size // 2 + 1 if asked.path.endswith(MADE.layers[1]) else None
    )
    assert (await puller(store).pull(f"{registry_front.host}/team/app:1")).layers == MADE.diff_ids
    ranges = [
        one.headers.get("Range") for one in registry_front.seen if one.path.endswith(MADE.layers[1])
    ]
    assert ranges == [None, f"bytes={size // 2 + 1}-"]


async def test_a_login_reaches_its_own_registry_and_no_other(tmp_path, store):
    (tmp_path / "htpasswd").write_text(registries.HTPASSWD)
    auth = {"htpasswd": {"realm": "tests", "path": str(tmp_path / "htpasswd")}}
    login = Access(username=USER, password=PASSWORD)
    with registries.docker_registry(tmp_path / "closed", auth=auth) as closed:
        headers = {"Authorization": login.basic() or ""}
        registries.push(closed.base, "team/app", "1", MADE, headers=headers)
        with registries.front(closed) as stranger:
            keyring = Keyring({closed.host: login}, environ={})
            with pytest.raises(Unauthorized):
                await Puller(store, keyring, patience=QUICK, environ={}).pull(
                    f"{stranger.host}/team/app:1"
                )
            assert {one.headers.get("Authorization") for one in stranger.seen} == {None}
            await Puller(store, keyring, patience=QUICK, environ={}).pull(
                f"{closed.host}/team/app:1"
            )


async def test_a_cancelled_pull_ends_soon_and_leaves_nothing(registry_front, store):
    loop = asyncio.get_running_loop()
    asked_for_a_layer = asyncio.Event()

    def rule(asked: Asked) -> None:
        if asked.path.endswith(MADE.layers[1]):
            loop.call_soon_threadsafe(asked_for_a_layer.set)
            # The rest never comes: only the cancellation can end the pull.
            asked.answer(200, {"Content-Length": str(len(MADE.blobs[MADE.layers[1]]))}, b"\x1f")
            released.wait(PATIENCE_S)
        else:
            asked.pass_on()

    released = threading.Event()
    registry_front.rule = rule
    pulling = asyncio.create_task(puller(store).pull(f"{registry_front.host}/team/app:1"))
    try:
        await asyncio.wait_for(asked_for_a_layer.wait(), PATIENCE_S)
        pulling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pulling
    finally:
        released.set()
    assert not [one for one in kept(store) if one.startswith(("records/", "names/", "making/"))]
    assert not [one for one in threading.enumerate() if one.name.startswith("sandkasten-pull")]


async def test_a_failed_pull_reports_the_layer_that_failed_and_not_the_cancelled_ones(
    registry_front, store
):
    def rule(asked: Asked) -> None:
        if asked.path.endswith(MADE.layers[2]):
            asked.answer(404, {})
        elif "/blobs/" in asked.path and asked.path.endswith((MADE.layers[0], MADE.layers[1])):
            asked.pass_on(at_most=10, ranges=False)
        else:
            asked.pass_on()

    registry_front.rule = rule
    # The neighbours get no further and would go on asking for ten minutes.
    patient = Patience(attempts=100_000, first_pause_s=0.05, longest_pause_s=0.05, whole_s=600)
    with pytest.raises(InvalidImage) as refused:
        await Puller(store, Keyring(environ={}), patience=patient, environ={}).pull(
            f"{registry_front.host}/team/app:1"
        )
    assert "has no" in refused.value.message


async def test_concurrent_pulls_of_one_image_give_one_image(registry_front, store):
    name = f"{registry_front.host}/team/app:1"
    both = await asyncio.gather(*(puller(store).pull(name) for _ in range(2)))
    assert both[0] == both[1]
    assert sorted(os.listdir(store.root / "layers")) == sorted(
        one.removeprefix("sha256:") for one in MADE.diff_ids
    )


async def test_an_image_copied_by_skopeo_is_identical(plain_registry, store):
    """Another tool's upload, through another format, is the same tree."""
    source, copied = (
        f"docker://{plain_registry.host}/team/app:1",
        f"docker://{plain_registry.host}/team/copied:1",
    )
    insecure = ("--src-tls-verify=false", "--dest-tls-verify=false", "--insecure-policy")
    await asyncio.to_thread(skopeo, "copy", "--format", "v2s2", *insecure, source, copied)
    ours = await puller(store).pull(f"{plain_registry.host}/team/app:1")
    theirs = await puller(store).pull(f"{plain_registry.host}/team/copied:1")
    assert theirs.layers == ours.layers
    assert theirs.id == ours.id


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)], check=True)
    yield small
    subprocess.run(["umount", "-l", str(small)], check=True)


async def test_a_pull_onto_a_full_disk_is_an_error_and_leaves_nothing(plain_registry, small_disk):
    store = LayerStore(small_disk / "images")
    with pytest.raises(QuotaExceeded):
        await puller(store).pull(f"{plain_registry.host}/team/app:1")
    assert not [one for one in kept(store) if one.startswith(("records/", "making/"))]
    assert shutil.disk_usage(small_disk).free > 500_000
