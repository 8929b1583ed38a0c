"""Images over HTTP: imported as a stream, tagged, used, removed, and pulled with progress."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from sandkasten.client.images import AsyncImages
from sandkasten.model.access.tenancy import TenantQuota
from sandkasten.model.images.image_info import BootstrapRequest, BuiltImage, ImageProgress
from sandkasten.model.images.known_images import KnownImage
from sandkasten.model.journal_rows import KeyRow
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.engine.storage.image_operations import EngineImages
from sandkasten_runtime.images.catalog import Images
from sandkasten_server.api.request.authentication import Doorkeeper
from tests.api.daemon_in_process import serving
from tests.imagekit import docker_members, layer, members_tar, sketch
from tests.images import registries
from tests.images.registries import HERE
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.promise("P45")

I = "/v1/images"  # noqa: E741


def archive(text: bytes = b"hello") -> bytes:
    image = sketch(layers=(layer({"etc": None, "etc/motd": text}),))
    return members_tar(docker_members(image))


async def take(daemon, data, query="?name=mine:1", kind="application/x-tar"):
    async def pieces():
        for at in range(0, len(data), 1000):
            yield data[at : at + 1000]

    return await daemon.ask(
        "POST", f"{I}/import{query}", data=pieces(), headers={"content-type": kind}
    )


def scratch(tmp_path):
    return os.listdir(tmp_path / "data/images/making")


async def test_an_uploaded_archive_becomes_an_image_that_can_be_tagged_and_removed(
    daemon, tmp_path
):
    taken = await take(daemon, archive())
    assert taken.status == 201, taken.raw
    [image] = taken.json["images"]
    assert image["names"] == ["mine:1"]
    assert image["size_bytes"] == image["bytes"]
    assert scratch(tmp_path) == []
    assert [one["id"] for one in (await daemon.ask("GET", I)).json["images"]] == [image["id"]]
    named = await daemon.ask("POST", f"{I}/tag", {"name": "mine:1", "new": "some/where:2"})
    assert named.status == 200, named.raw
    for name in ("mine:1", "some/where:2", image["id"], "docker.io/some/where:2"):
        found = await daemon.ask("GET", f"{I}/{name}")
        assert found.json["id"] == image["id"], name
    usage = (await daemon.ask("GET", f"{I}/usage")).json
    assert (usage["images"], usage["layers"]) == (1, 1)
    first = (await daemon.ask("DELETE", f"{I}/mine:1")).json
    assert (first["ok"], first["deleted"]) == (True, False)
    assert (await daemon.ask("DELETE", f"{I}/some/where:2")).json["deleted"] is True
    for verb in ("GET", "DELETE"):
        missing = await daemon.ask(verb, f"{I}/mine:1")
        assert (missing.status, missing.json["code"]) == (404, "IMAGE_NOT_FOUND")
    assert (await daemon.ask("POST", f"{I}/collect")).json["ok"] is True
    assert (await daemon.ask("GET", I)).json["images"] == []


async def test_an_invalid_image_is_refused_without_revealing_its_path(daemon, tmp_path):
    for body in (b"", b"garbage" * 1000, archive()[:3000]):
        reply = await take(daemon, body)
        assert (reply.status, reply.json["code"]) == (400, "INVALID_IMAGE"), reply.raw
        assert str(tmp_path) not in reply.raw.decode()
    assert (await take(daemon, archive(), "?name=../../x")).status == 400
    assert (await take(daemon, archive(), "?path=/etc/passwd")).status == 422
    assert (await take(daemon, archive(), kind="application/json")).status == 415
    assert scratch(tmp_path) == []
    assert (await daemon.ask("GET", I)).json["images"] == []


async def test_a_client_that_disconnects_during_an_import_leaves_nothing(daemon, tmp_path):
    _, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    writer.write(
        f"POST {I}/import?name=x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n"
        "Content-Type: application/x-tar\r\n\r\n".encode()
        + archive()
    )
    await writer.drain()
    for _ in range(int(PATIENCE_S / 0.02)):
        if list((tmp_path / "data/images/making").glob("*/archive")):
            break
        await asyncio.sleep(0.02)
    assert len(scratch(tmp_path)) == 1
    [place] = (tmp_path / "data/images/making").iterdir()
    assert (place / "archive").stat().st_mode & 0o777 == 0o600
    writer.transport.abort()
    for _ in range(int(PATIENCE_S / 0.02)):
        if not scratch(tmp_path):
            break
        await asyncio.sleep(0.02)
    assert scratch(tmp_path) == []


async def test_an_image_in_use_is_kept_and_only_its_owner_learns_the_sessions(daemon, engine):
    await take(daemon, archive())
    mine = await engine.create(CreateRequest(SandboxOptions(image="mine:1")))
    other = await engine.create(CreateRequest(SandboxOptions(image="mine:1"), tenant="other"))
    assert (await daemon.ask("GET", f"{I}/mine:1")).json["used_by"] == [mine.id]
    assert (await daemon.ask("GET", I)).json["images"][0]["used_by"] == [mine.id]
    refused = await daemon.ask("DELETE", f"{I}/mine:1")
    assert (refused.status, refused.json["code"]) == (409, "CONFLICT")
    assert refused.json["details"]["sandboxes"] == [mine.id]
    assert other.id not in refused.raw.decode()
    await engine.destroy(mine.id)
    still = await daemon.ask("DELETE", f"{I}/mine:1")
    assert still.status == 409
    assert other.id not in still.raw.decode()


async def test_a_key_without_the_scope_reads_and_changes_nothing(engine):
    class Keys:
        def check(self, _hashed, _now):
            return KeyRow("k", "t", "name", frozenset({"sessions"}), 0.0, TenantQuota())

    keeper = Doorkeeper(clock=SystemClock(), keys=Keys())  # type: ignore[arg-type]
    async with serving(engine, doorkeeper=keeper) as daemon:
        headers = {"Authorization": "Bearer sk-x"}
        assert (await daemon.ask("GET", I, headers=headers)).status == 200
        assert (await daemon.ask("GET", f"{I}/usage", headers=headers)).status == 200
        for method, path in (
            ("POST", "/pull"),
            ("POST", "/build"),
            ("POST", "/import"),
            ("POST", "/tag"),
            ("POST", "/collect"),
            ("DELETE", "/x"),
        ):
            reply = await daemon.ask(method, I + path, headers=headers)
            assert (reply.status, reply.json["code"]) == (403, "FORBIDDEN"), path
        assert (await daemon.ask("GET", "/v1/workspaces", headers=headers)).status == 403


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    with registries.docker_registry(tmp_path_factory.mktemp("registry")) as running:
        made = registries.image(registries.layer({"big": os.urandom(2_000_000)}), architecture=HERE)
        registries.push(running.base, "team/app", "1", made)
        yield running


EVENTS = {"Accept": "text/event-stream"}


async def test_a_pull_reports_progress_and_ends_with_the_image(daemon, registry):
    body = {"name": f"{registry.host}/team/app:1"}
    reply = await daemon.ask("POST", f"{I}/pull", body, headers=EVENTS)
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    events = [one.split(b"\n") for one in reply.raw.split(b"\n\n") if one.startswith(b"event")]
    names = [one[0] for one in events]
    assert names[0] == b"event: progress"
    assert names[-1] == b"event: done"
    image = json.loads(events[-1][1][6:])
    assert image["names"] == [body["name"]]
    again = await daemon.ask("POST", f"{I}/pull", body)
    assert (again.status, again.json["id"]) == (200, image["id"])


@pytest.fixture
def debian(monkeypatch):
    """Packages of Debian are replaced by an image of the store: mmdebstrap takes a minute."""

    async def known(self, name):
        assert name == "datascience"
        return KnownImage("bookworm", ("hello",))

    async def build(self, request, *, progress):
        assert request == BootstrapRequest("datascience", "bookworm", ("hello",))
        if progress is not None:
            progress(ImageProgress("installing", 1, 2))
        names = {name for image in await self.list() for name in image.names}
        image = await self.tag("mine:1", request.name)
        return BuiltImage(image, cached=request.name in names, warnings=("one line",))

    monkeypatch.setattr(EngineImages, "build_debian", build)
    monkeypatch.setattr(Images, "known", known)


@pytest.mark.usefixtures("debian")
async def test_build_reports_progress_and_ends_with_the_image(daemon):
    await take(daemon, archive())
    body = {"name": "datascience"}
    reply = await daemon.ask("POST", f"{I}/build", body, headers=EVENTS)
    events = [one.split(b"\n") for one in reply.raw.split(b"\n\n") if one.startswith(b"event")]
    assert [event[0] for event in events] == [b"event: progress", b"event: done"]
    image = json.loads(events[-1][1][6:])
    assert image["cached"] is False
    again = await daemon.ask("POST", f"{I}/build", body)
    assert (again.status, again.json["id"], again.json["warnings"]) == (
        200,
        image["id"],
        ["one line"],
    )
    reports: list[ImageProgress] = []
    images = AsyncImages(url=daemon.url)
    built = await images.build_known("datascience", progress=reports.append)
    assert (built.image.id, built.warnings, len(reports)) == (image["id"], ("one line",), 1)


async def test_build_of_a_name_without_a_definition_is_refused(daemon):
    for headers in ({}, EVENTS):
        reply = await daemon.ask("POST", f"{I}/build", {"name": "nothing"}, headers=headers)
        assert (reply.status, reply.json["code"]) == (400, "INVALID_REQUEST")
        assert "datascience" in reply.json["hint"]


@pytest.mark.usefixtures("patient_streams")
@pytest.mark.parametrize("verb", ["pull", "build"])
async def test_a_client_that_leaves_ends_what_it_waits_for(daemon, monkeypatch, verb):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def endless(request, *, progress):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    method = "pull" if verb == "pull" else "build_known"
    monkeypatch.setattr(daemon.server.engine.images, method, endless)
    asking = asyncio.create_task(daemon.ask("POST", f"{I}/{verb}", {"name": "base"}))
    async with asyncio.timeout(PATIENCE_S):
        await begun.wait()
        asking.cancel()
        await ended.wait()


async def test_an_impossible_pull_is_an_error_with_and_without_streaming(daemon, registry):
    for name in ("--privileged", f"{registry.host}/team/none:1"):
        plain = await daemon.ask("POST", f"{I}/pull", {"name": name})
        assert plain.status in (400, 404), plain.raw
        events = await daemon.ask("POST", f"{I}/pull", {"name": name}, headers=EVENTS)
        assert (events.status, events.json["code"]) == (plain.status, plain.json["code"])
    assert (await daemon.ask("POST", f"{I}/pull", {})).status == 422
