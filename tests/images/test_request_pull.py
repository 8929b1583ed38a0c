"""Images that a request names in full are pulled: which ones, how large, and what failure says."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import (
    ImageNotFound,
    InvalidImage,
    PayloadTooLarge,
    QuotaExceeded,
    RegistryUnavailable,
)
from sandkasten.model.images.image_info import PullRequest
from sandkasten.ports.pull_limits import PullLimits
from sandkasten_runtime.assembly.settings import resolver
from sandkasten_runtime.images.catalog import Images
from sandkasten_runtime.images.image_sources import Sources
from sandkasten_runtime.images.layers.image_store import LayerStore
from sandkasten_runtime.images.registry.registry_credentials import Access
from sandkasten_runtime.images.registry.registry_http import Patience
from tests import imagekit
from tests.images import registries
from tests.loopback_port import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.images.registries import Running

pytestmark = pytest.mark.anyio

FILES = {"hello": b"hi\n" * 100}
MADE = registries.image(registries.layer(FILES), architecture=registries.HERE)


@pytest.fixture(scope="module")
def registry(tmp_path_factory) -> Iterator[Running]:
    with registries.docker_registry(tmp_path_factory.mktemp("registry")) as running:
        registries.push(running.base, "team/app", "1", MADE)
        registries.push(running.base, "team/app", "latest", MADE)
        yield running


@pytest.fixture
def usr(tmp_path) -> Path:
    (tmp_path / "usr" / "bin").mkdir(parents=True)
    for program in ("bash", "python3"):
        (tmp_path / "usr" / "bin" / program).touch(0o755)
    return tmp_path / "usr"


class Heard:
    """Keeps the engine's events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []

    def emit(self, event: str, fields: Mapping[str, Any]) -> None:
        self.events.append((event, fields))

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.events))


def catalog(
    usr: Path, *, registries: Sequence[str] = (), limits: PullLimits | None = None, **more: Any
) -> Images:
    store = LayerStore(usr.parent / "images")
    known = {one: Access() for one in registries}
    sources = Sources(store, registries=known, limits=limits or PullLimits())
    return Images(store, usr=usr, sources=sources, **{"pull": "named", **more})


def test_a_request_pulls_what_it_names_in_full_unless_the_operator_forbids_it(tmp_path):
    found = resolver.load({}, {}, tmp_path)
    assert (found.named("images.pull"), found.plugins["docker"].pull) == ("named", "named")
    off = resolver.load({}, {"SANDKASTEN_IMAGES_PULL": "never"}, tmp_path)
    assert off.named("images.pull") == "never"


@pytest.mark.promise("P50")
async def test_a_full_name_on_the_allow_list_or_of_a_known_registry_is_pulled(usr, registry):
    name = f"{registry.host}/team/app:1"
    with pytest.raises(ImageNotFound) as refused:
        await catalog(usr, pull="never", allowed=[name]).resolve(name)
    assert "is not in the store" in refused.value.message
    assert (await catalog(usr, allowed=[name]).resolve(name)).name == name
    digest = f"{registry.host}/team/app@{MADE.digest}"
    found = await catalog(usr, registries=[registry.host]).resolve(digest)
    assert (found.kind, found.name) == ("layers", digest)


@pytest.mark.promise("P50")
async def test_no_other_registry_is_contacted_for_a_request(usr, registry):
    """A request must not be able to make the daemon connect to any address of its choice."""
    with registries.front(registry) as front:
        with pytest.raises(ImageNotFound) as refused:
            await catalog(usr).resolve(f"{front.host}/team/app:1")
        assert f"images.registries lists {front.host}" in refused.value.hint
        # Not in full: a misspelt word must not become an image of a stranger.
        with pytest.raises(ImageNotFound) as refused:
            await catalog(usr, registries=[front.host]).resolve(f"{front.host}/team/app")
        assert "with its tag" in refused.value.hint
        aliases = {"bash": f"{front.host}/team/app:1", "mine": f"{front.host}/team/app:1"}
        images = catalog(usr, registries=[front.host], aliases=aliases)
        assert (await images.resolve("bash")).kind == "host"
        with pytest.raises(ImageNotFound) as refused:
            await images.resolve("mine")
        assert f"sandkasten image pull {front.host}/team/app:1" in refused.value.hint
        assert front.seen == []


async def test_concurrent_requests_for_one_image_pull_it_once(usr, registry):
    with registries.front(registry) as front:
        name = f"{front.host}/team/app:1"
        images = catalog(usr, allowed=[name])
        found = await asyncio.gather(*(images.resolve(name) for _ in range(5)))
        assert len({one.id for one in found}) == 1
        assert len(front.paths("/manifests/")) == 1


@pytest.fixture
def offline(monkeypatch) -> str:
    """Return a registry where nothing listens; do not wait for it."""
    monkeypatch.setattr(Patience, "pause_s", lambda *_: 0.01)
    return f"localhost:{free_port()}"


async def test_an_offline_machine_gets_both_remedies(usr, offline):
    name = f"{offline}/python:3.11-slim"
    with pytest.raises(RegistryUnavailable) as refused:
        await catalog(usr, registries=[offline]).resolve(name)
    message, hint = refused.value.message, refused.value.hint
    assert message.startswith(f"image {name} is not in the store and could not be pulled: ")
    for words in (
        f"sandkasten image pull {name}",
        f"sandkasten image export {name} FILE",
        "sandkasten image import FILE",
        "or use one of: host, python, ",
    ):
        assert words in hint
    with pytest.raises(RegistryUnavailable) as refused:
        await catalog(usr, allowed=[name]).resolve(name)
    assert refused.value.hint.endswith(f"allowed_images: {name}")


async def test_an_alias_that_cannot_be_pulled_says_why_if_the_host_may_not_stand_in(usr, offline):
    name = f"{offline}/a:1"
    images = catalog(usr, pull="missing", aliases={"bash": name}, allowed=[name])
    with pytest.raises(RegistryUnavailable) as refused:
        await images.resolve("bash")
    assert "could not be pulled" in refused.value.message


async def test_an_image_over_a_limit_is_refused_before_it_is_downloaded(usr, registry):
    name = f"{registry.host}/team/app:1"
    with registries.front(registry) as front:
        aside = f"{front.host}/team/app:1"
        for limits, error, setting in (
            (PullLimits(image_bytes=100), PayloadTooLarge, "images.pull_max_bytes"),
            (PullLimits(store_bytes=100), QuotaExceeded, "images.max_bytes"),
        ):
            with pytest.raises(error) as refused:
                await catalog(usr, allowed=[aside], limits=limits).resolve(aside)
            assert setting in refused.value.hint
        assert [one for one in front.paths("/blobs/") if MADE.layers[0] in one] == []
    assert LayerStore(usr.parent / "images").layers() == []
    # The twin: the operator's own pull is bounded by the image alone.
    limits = PullLimits(image_bytes=1 << 20, store_bytes=100)
    assert (await catalog(usr, limits=limits).pull(PullRequest(name))).names == (name,)


async def test_an_image_that_unpacks_to_more_than_the_limit_is_refused(usr, registry):
    """The manifest names compressed sizes only."""
    bomb = registries.image(
        registries.layer({"zeros": bytes(1 << 20)}), architecture=registries.HERE
    )
    halves = registries.image(
        *(registries.layer({name: name.encode() * 600_000}) for name in "ab"),
        architecture=registries.HERE,
    )
    for tag, made in (("bomb", bomb), ("halves", halves)):
        registries.push(registry.base, "team/big", tag, made)
        name = f"{registry.host}/team/big:{tag}"
        limits = PullLimits(image_bytes=1_000_000)
        with pytest.raises(PayloadTooLarge) as refused:
            await catalog(usr, allowed=[name], limits=limits).resolve(name)
        assert "images.pull_max_bytes" in refused.value.hint
        assert await catalog(usr).list() == []


async def test_a_pull_for_a_request_is_reported_in_events(usr, registry):
    heard = Heard()
    name = f"{registry.host}/team/app:1"
    await catalog(usr, allowed=[name], events=heard).resolve(name)
    assert heard.names == ["image.pull_started", "image.pull_progress", "image.pulled"]
    assert heard.events[0][1] == {"image": name}
    last = heard.events[-2][1]
    assert last["done"] == last["total"]
    assert heard.events[-1][1]["image"] == name
    missing = f"{registry.host}/team/none:1"
    with pytest.raises(InvalidImage):
        await catalog(usr, allowed=[missing], events=heard).resolve(missing)
    assert heard.events[-1] == ("image.pull_failed", {"image": missing, "code": "IMAGE_NOT_FOUND"})


def test_run_pulls_a_literal_image_and_says_so(tmp_path, registry):
    rootfs = registries.image(
        imagekit.busybox_tar().read_bytes(), architecture=registries.HERE, env=("PATH=/bin",)
    )
    registries.push(registry.base, "team/busybox", "1.36", rootfs)
    name = f"{registry.host}/team/busybox:1.36"
    env = {
        **os.environ,
        "SANDKASTEN_DATA_DIR": str(tmp_path / "data"),
        "SANDKASTEN_IMAGES_REGISTRIES": json.dumps({registry.host: {}}),
        "DOCKER_CONFIG": str(tmp_path),
    }
    command = [
        *(sys.executable, "-m", "sandkasten_server.cli", "--embedded", "run"),
        *("--runtime", "sh", "--image", name, "-c", "ls -l /bin/busybox >/dev/null && echo inside"),
    ]
    first, second = (
        subprocess.run(
            command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
        )
        for _ in range(2)
    )
    assert (first.returncode, first.stdout) == (0, "inside\n"), first.stderr
    assert first.stderr == f"pulling {name}\npulled {name}\n"
    assert (second.returncode, second.stdout, second.stderr) == (0, "inside\n", "")
