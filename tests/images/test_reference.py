"""Image names, platforms and manifests."""

from __future__ import annotations

import json

import pytest

from sandkasten.errors import InvalidImage, InvalidRequest
from sandkasten_runtime.images.registry.image_reference import (
    Platform,
    Reference,
    best,
    parse_platform,
    parse_reference,
    this_platform,
)
from sandkasten_runtime.images.registry.manifests import DOCKER_LIST, Index, read_manifest
from tests.images import registries
from tests.images.registry_access import MADE


@pytest.mark.parametrize(
    ("name", "registry", "repository", "tag", "familiar"),
    [
        ("python", "docker.io", "library/python", "latest", "python:latest"),
        ("python:3.11-slim", "docker.io", "library/python", "3.11-slim", "python:3.11-slim"),
        ("docker.io/library/python:3", "docker.io", "library/python", "3", "python:3"),
        ("registry-1.docker.io/a/b", "docker.io", "a/b", "latest", "a/b:latest"),
        ("a/b", "docker.io", "a/b", "latest", "a/b:latest"),
        ("localhost/a", "localhost", "a", "latest", "localhost/a:latest"),
        ("h.example/a/b:t", "h.example", "a/b", "t", "h.example/a/b:t"),
        ("h:5000/a", "h:5000", "a", "latest", "h:5000/a:latest"),
    ],
)
def test_a_name_refers_to_one_repository_of_one_registry(name, registry, repository, tag, familiar):
    found = parse_reference(name)
    assert found == Reference(registry, repository, tag, None)
    assert found.familiar == familiar
    assert parse_reference(found.full) == found


def test_a_digest_takes_precedence_over_a_tag():
    digest = "sha256:" + "a" * 64
    assert parse_reference(f"python@{digest}") == Reference(
        "docker.io", "library/python", None, digest
    )
    both = parse_reference(f"h:5000/a:t@{digest}")
    assert (both.tag, both.wanted, both.familiar) == ("t", digest, f"h:5000/a:t@{digest}")


def test_docker_hub_is_contacted_at_its_registry_host():
    assert parse_reference("python").api_host == "registry-1.docker.io"
    assert parse_reference("h:5000/a").api_host == "h:5000"


@pytest.mark.parametrize(
    "name", ["host", "--privileged", "../x", "x" * 10_000, "h:99999/a", "A/b "]
)
def test_a_name_without_a_registry_form_is_refused(name):
    with pytest.raises(InvalidImage):
        parse_reference(name)


# ---- platforms ---------------------------------------------------------------------------------


def test_the_hosts_platform_is_a_valid_image_platform():
    assert this_platform("x86_64") == Platform("linux", "amd64")
    assert this_platform("aarch64") == Platform("linux", "arm64", "v8")
    assert this_platform("riscv64") == Platform("linux", "riscv64")


@pytest.mark.parametrize("text", ["", "linux", "linux/", "linux/amd64/v8/x", "a b/c", "x/" * 99])
def test_an_invalid_platform_is_refused(text):
    with pytest.raises(InvalidRequest) as refused:
        parse_platform(text)
    assert "linux/amd64" in refused.value.hint


@pytest.mark.parametrize(
    ("wanted", "offered", "chosen"),
    [
        ("linux/amd64", ["linux/arm64/v8", "linux/amd64"], 1),
        ("linux/x86_64", ["linux/amd64"], 0),
        ("linux/arm64", ["linux/arm64/v8"], 0),
        ("linux/arm64/v8", ["linux/arm64"], 0),
        ("linux/amd64", ["linux/amd64/v3", "linux/amd64"], 1),
        ("linux/amd64", ["linux/amd64/v3"], None),
        ("linux/amd64/v3", ["linux/amd64", "linux/amd64/v2", "linux/amd64/v4"], 0),
        ("linux/arm/v7", ["linux/arm/v5", "linux/arm/v6", "linux/arm64/v8"], 1),
        ("linux/arm/v6", ["linux/arm/v7"], None),
        ("linux/amd64", ["windows/amd64"], None),
    ],
)
def test_the_best_platform_is_chosen_and_never_a_newer_one(wanted, offered, chosen):
    assert best(parse_platform(wanted), [_plain(one) for one in offered]) == chosen


def _plain(text: str) -> Platform:
    os_, architecture, *variant = text.split("/")
    return Platform(os_, architecture, *variant)


# ---- manifests ---------------------------------------------------------------------------------


def test_an_image_without_a_usable_platform_lists_its_platforms():
    data, kind = registries.index({"linux/arm64/v8": MADE, "linux/s390x": MADE})
    found = read_manifest(data, kind, "app")
    assert isinstance(found, Index)
    with pytest.raises(InvalidImage) as refused:
        found.choose(parse_platform("linux/amd64"), "app")
    assert refused.value.message == "image app is not made for linux/amd64"
    assert refused.value.hint == "it is made for: linux/arm64/v8, linux/s390x"


def test_attestations_in_an_index_are_ignored():
    data, kind = registries.index({"unknown/unknown": MADE, "linux/amd64": MADE})
    found = read_manifest(data, kind, "app")
    assert isinstance(found, Index)
    assert [str(platform) for platform, _ in found.entries] == ["linux/amd64"]


def test_a_schema_1_manifest_is_refused_by_name():
    data = json.dumps({"schemaVersion": 1, "name": "app", "fsLayers": []}).encode()
    with pytest.raises(InvalidImage) as refused:
        read_manifest(data, "application/vnd.docker.distribution.manifest.v1+prettyjws", "app")
    assert "schema 1" in refused.value.message


def _damaged(**changes) -> bytes:
    return json.dumps({**json.loads(MADE.manifest), **changes}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 100_000,
        b"{}",
        _damaged(config=None),
        _damaged(layers="x"),
        _damaged(layers=[{"mediaType": "x", "digest": "sha256:" + "0" * 64, "size": 1}]),
        _damaged(layers=[{**json.loads(MADE.manifest)["layers"][0], "size": -1}]),
        _damaged(layers=[{**json.loads(MADE.manifest)["layers"][0], "size": True}]),
        _damaged(layers=[{**json.loads(MADE.manifest)["layers"][0], "digest": "md5:00"}]),
        _damaged(layers=[{**json.loads(MADE.manifest)["layers"][0], "digest": "sha256:../x"}]),
        _damaged(layers=json.loads(MADE.manifest)["layers"] * 1000),
        _damaged(mediaType=DOCKER_LIST),
        _damaged(manifests=[]),
        _damaged(
            config={
                "mediaType": "application/vnd.cncf.helm.config.v1+json",
                "digest": "sha256:" + "0" * 64,
                "size": 2,
            }
        ),
    ],
)
def test_an_invalid_manifest_is_refused(data):
    with pytest.raises(InvalidImage) as refused:
        read_manifest(data, MADE.media_type, "app")
    assert len(refused.value.message) < 300
