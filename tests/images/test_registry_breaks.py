"""Registries that are overloaded, disconnect, send wrong data, or are very slow."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler

import pytest

from sandkasten.errors import Cancelled, InvalidImage, RegistryUnavailable
from sandkasten_runtime.images.registry.blob_stream import ThreadReader
from sandkasten_runtime.images.registry.manifests import Manifest
from sandkasten_runtime.images.registry.registry_http import Patience
from tests.images import registries
from tests.images.registry_access import (
    MADE,
    QUICK,
    manifest_of,
    open_registry,
    reach,
    read_manifest,
)
from tests.patience import PATIENCE_S
from tests.shared_sandbox_cases import few


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_request_to_an_overloaded_registry_is_retried(registry_front, status):
    refusals = [status, status]

    def rule(asked: registries.Asked) -> None:
        if "/manifests/" in asked.path and refusals:
            asked.answer(refusals.pop(), {"Retry-After": "0"}, b"later")
        else:
            asked.pass_on()

    registry_front.rule = rule
    async with open_registry(registry_front.host) as registry:
        await manifest_of(registry)
    assert len(registry_front.paths("/manifests/")) == 3


async def test_a_registry_that_stays_overloaded_is_unavailable(registry_front):
    registry_front.rule = lambda asked: (
        asked.pass_on() if asked.path == "/v2/" else asked.answer(503, {}, b"")
    )
    with pytest.raises(RegistryUnavailable) as refused:
        await read_manifest(registry_front.host)
    assert "answered 503" in refused.value.message
    assert len(registry_front.paths("/manifests/")) == QUICK.attempts


@pytest.mark.parametrize("ranges", [True, False])
async def test_a_broken_download_continues_where_it_broke(registry_front, ranges):
    size = len(MADE.blobs[MADE.layers[0]])
    registry_front.rule = lambda asked: asked.pass_on(
        at_most=None if "/blobs/" not in asked.path else size // 3 + 1, ranges=ranges
    )
    if not ranges:
        # Without ranges every attempt starts over, so each must come further.
        lengths = iter([size // 3, size // 2, size])
        registry_front.rule = lambda asked: asked.pass_on(
            at_most=next(lengths) if "/blobs/" in asked.path else None, ranges=False
        )
    async with open_registry(registry_front.host) as registry:
        blob = (await manifest_of(registry)).layers[0]
        assert await registry.blob(blob).read_all() == MADE.blobs[blob.digest]
    begun = [one.headers.get("Range") for one in registry_front.seen if "/blobs/" in one.path]
    assert len(begun) == 3
    assert begun[0] is None
    assert all(one is not None and one.startswith("bytes=") for one in begun[1:])


async def test_a_download_without_progress_is_abandoned(registry_front):
    registry_front.rule = lambda asked: asked.pass_on(
        at_most=0 if "/blobs/" in asked.path else None
    )
    async with open_registry(registry_front.host) as registry:
        blob = (await manifest_of(registry)).layers[0]
        with pytest.raises(RegistryUnavailable) as refused:
            await registry.blob(blob).read_all()
    assert "broke off at byte 0" in refused.value.message
    assert len(registry_front.paths("/blobs/")) == QUICK.attempts


async def test_a_manifest_that_does_not_match_its_digest_is_refused(registry_front):
    registry_front.rule = lambda asked: (
        asked.pass_on()
        if asked.path == "/v2/"
        else asked.answer(200, {"Content-Type": MADE.media_type}, MADE.manifest + b" ")
    )
    async with open_registry(registry_front.host) as registry:
        with pytest.raises(InvalidImage) as refused:
            await registry.manifest(MADE.digest)
        assert f"not {MADE.digest}" in refused.value.message
        # By a tag, and without a word about its digest, there is nothing to compare it with.
        assert isinstance((await registry.manifest("1"))[0], Manifest)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda blob: blob[:-1] + bytes([blob[-1] ^ 1]), "has digest"),
        (lambda blob: blob + b"x", "another size"),
        (lambda blob: blob[:-1], "another size"),
    ],
)
async def test_a_blob_that_does_not_match_its_digest_is_refused_at_its_end(
    registry_front, damage, said
):
    def rule(asked: registries.Asked) -> None:
        if "/blobs/" in asked.path:
            asked.answer(200, {}, damage(MADE.blobs[asked.path.rpartition("/")[2]]))
        else:
            asked.pass_on()

    registry_front.rule = rule
    async with open_registry(registry_front.host) as registry:
        blob = (await manifest_of(registry)).layers[0]
        with pytest.raises(InvalidImage) as refused:
            await registry.blob(blob).read_all()
    assert said in refused.value.message


async def test_an_endless_blob_is_cut_at_its_size(registry_front):
    def rule(asked: registries.Asked) -> None:
        if "/blobs/" in asked.path:
            body = MADE.blobs[asked.path.rpartition("/")[2]] * 2
            packed = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
            asked.answer(200, {"Transfer-Encoding": "chunked", "Content-Length": None}, packed)
        else:
            asked.pass_on()

    registry_front.rule = rule
    async with open_registry(registry_front.host) as registry:
        blob = (await manifest_of(registry)).layers[0]
        stream = registry.blob(blob)
        with pytest.raises(InvalidImage) as refused:
            await stream.read_all()
    assert "more came than" in refused.value.message
    assert stream.got <= blob.size


async def test_a_cancelled_unpacker_stops_within_a_chunk(registry_front):
    async with open_registry(registry_front.host) as registry:
        stream = registry.blob((await manifest_of(registry)).layers[0])
        reader = ThreadReader(stream)
        feeding = asyncio.create_task(reader.feed(lambda _: None))
        assert len(await asyncio.to_thread(reader.read, 10)) == 10
        reader.abort()
        with pytest.raises(Cancelled):
            await asyncio.to_thread(reader.read, 10)
        feeding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await feeding


async def test_a_download_waits_for_its_unpacker(registry_front):
    async with open_registry(registry_front.host) as registry:
        blob = (await manifest_of(registry)).layers[0]
        reader = ThreadReader(registry.blob(blob))
        passed: list[int] = []
        full = asyncio.Event()

        def report(got: int) -> None:
            passed.append(got)
            if len(passed) == 4:
                full.set()

        feeding = asyncio.create_task(reader.feed(report))
        await asyncio.wait_for(full.wait(), PATIENCE_S)
        await asyncio.sleep(0.2)
        assert len(passed) == 4, "nothing was read, so nothing more is fetched"
        assert await asyncio.to_thread(reader.readall) == MADE.blobs[blob.digest]
        await feeding


async def test_a_whole_pull_has_a_deadline(registry_front):
    def slow(asked: registries.Asked) -> None:
        time.sleep(0.3)
        asked.pass_on()

    registry_front.rule = slow
    # So many attempts that they alone would last for many minutes.
    patience = Patience(attempts=10_000, first_pause_s=0.01, silence_s=0.1, whole_s=0.5)
    with pytest.raises(RegistryUnavailable) as late:
        await reach(registry_front.host, patience=patience)
    assert "within 0.5 s" in late.value.message


class Dripping(BaseHTTPRequestHandler):
    """Sends a byte now and then, which no socket timeout notices."""

    part = "body"

    def do_GET(self) -> None:
        if self.path == "/v2/":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            return
        if self.path.startswith("/token") or self.part != "token":
            length = "" if self.part == "endless" else "Content-Length: 4000000\r\n"
            end = "X: " if self.part == "headers" else "\r\n"
            self.wfile.write(f"HTTP/1.1 200 OK\r\n{length}{end}".encode())
            # Much longer than any test may take; a client that hangs up ends it.
            for _ in range(6000):
                self.wfile.write(b" ")
                time.sleep(0.1)
            return
        realm = f"http://{self.headers['Host']}/token"
        self.wfile.write(
            f'HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer realm="{realm}"\r\n'
            "Content-Length: 0\r\n\r\n".encode()
        )

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.promise("P49")
@pytest.mark.parametrize("part", few(["headers", "body", "endless", "token"]))
async def test_a_very_slow_registry_ends_at_the_deadline(part):
    handler = type("Handler", (Dripping,), {"part": part})
    patience = replace(QUICK, whole_s=1.0)
    with registries.served(handler) as port, pytest.raises(RegistryUnavailable) as late:
        await read_manifest(f"127.0.0.1:{port}", patience=patience)
    assert "within 1 s" in late.value.message


@pytest.mark.promise("P49")
@pytest.mark.parametrize("part", few(["headers", "body", "endless", "token"]))
async def test_a_pull_from_a_very_slow_registry_can_be_cancelled(part):
    handler = type("Handler", (Dripping,), {"part": part})
    with registries.served(handler) as port:
        asking = asyncio.create_task(read_manifest(f"127.0.0.1:{port}"))
        await asyncio.sleep(0.5)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_token_server_that_disconnects_is_named():
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/token"):
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
                return
            realm = f"http://{self.headers['Host']}/token"
            self.wfile.write(
                f'HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer realm="{realm}"\r\n'
                "Content-Length: 0\r\n\r\n".encode()
            )

        def log_message(self, format: str, *args: object) -> None:
            pass

    with registries.served(Handler) as port, pytest.raises(RegistryUnavailable) as broken:
        await read_manifest(f"127.0.0.1:{port}")
    assert "broke off" in broken.value.message
