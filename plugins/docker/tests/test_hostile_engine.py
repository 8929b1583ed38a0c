"""An engine that lies or never ends its answers: typed errors and bounded memory."""

from __future__ import annotations

import asyncio
import copy
import json
import random
import resource
import struct
from typing import TYPE_CHECKING, Any

import pytest

from plugins.docker.tests.fake_docker import BOX, ID, OWNER, PLAUSIBLE, FakeDocker, answered
from sandkasten.errors import BackendUnavailable, Busy, SandkastenError
from sandkasten.model.ids import SandboxId
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten_docker import cell as cells
from sandkasten_docker.backend import DockerBackend
from sandkasten_docker.docker_engine.docker_address import address_of
from sandkasten_docker.docker_engine.docker_client import DockerClient
from sandkasten_docker.docker_engine.exec_stream import ExecStream
from sandkasten_docker.docker_options import DockerOptions
from tests.patience import FAR_TOO_LATE_S, PATIENCE_S
from tests.platform_choice import LONG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

pytestmark = pytest.mark.promise("P59")

MIB = 1 << 20
JUNK: tuple[Any, ...] = (
    None, True, 0, -1, 10**30, 1.5, "", "x", "../../x", "a/b", "\udcff", [], {}, [None], [[]],
    [{}], {"Labels": 7}, {"": None}, ["a"], {"message": 1},
)  # fmt: skip
SPEC = CellSpec(image=Image("i", kind="engine", id=f"sha256:{ID}"))


@pytest.fixture
async def fake_docker(tmp_path: Path) -> AsyncIterator[FakeDocker]:
    async with FakeDocker(tmp_path / "s") as instance:
        yield instance


@pytest.fixture
async def backend(fake_docker: FakeDocker, tmp_path: Path) -> AsyncIterator[DockerBackend]:
    home = tmp_path / "data" / "docker"
    home.mkdir(parents=True)
    (home / "owner").write_text(OWNER)
    options = DockerOptions(host=fake_docker.host, workspace="volume", timeout_s=PATIENCE_S)
    instance = DockerBackend(tmp_path / "data", options)
    yield instance
    await instance.aclose()


@pytest.fixture
async def client(fake_docker: FakeDocker) -> AsyncIterator[DockerClient]:
    instance = DockerClient(address_of(DockerOptions(host=fake_docker.host)), PATIENCE_S)
    yield instance
    await instance.aclose()


def changed(value: Any, chance: random.Random) -> Any:
    """Return a copy of the value with one place replaced."""
    copied = copy.deepcopy(value)
    at: Any = [copied]
    key: Any = 0
    while isinstance(at[key], dict | list) and at[key] and chance.random() < 0.75:
        at = at[key]
        key = chance.choice(list(at) if isinstance(at, dict) else range(len(at)))
    if at is not None and copied is not value and at == [copied]:
        return chance.choice(JUNK)
    if isinstance(at, dict) and chance.random() < 0.2:
        del at[key]
    else:
        at[key] = chance.choice(JUNK)
    return copied


async def ask_everything(backend: DockerBackend) -> list[str]:
    """Call each method once; return exceptions that are not typed errors."""
    verbs: dict[str, Callable[[], Awaitable[Any]]] = {
        "probe": backend.probe,
        "owned": backend.owned,
        "create": lambda: backend.create(SandboxId("sbx_" + "1" * 16), SPEC),
        "find_image": lambda: backend.find_image(["python"]),
        "usage": lambda: _usage(backend),
        "discard": lambda: backend.discard(SandboxId(BOX)),
    }
    unnamed = []
    for name, verb in verbs.items():
        try:
            await asyncio.wait_for(verb(), FAR_TOO_LATE_S)
        except SandkastenError:
            pass
        except Exception as exc:  # noqa: BLE001
            unnamed.append(f"{name}: {exc!r}")
    return unnamed


async def _usage(backend: DockerBackend) -> None:
    cell = await backend.attach(SandboxId(BOX))
    await cell.usage()
    await cell.pause()
    await cell.dial()


@pytest.mark.root
async def test_no_directory_is_made_where_an_engine_says_that_its_volumes_are(
    fake_docker: FakeDocker, tmp_path: Path
):
    there = tmp_path / "var" / "volumes"
    fake_docker.says(r"POST /volumes/create", {"Name": "v", "Mountpoint": str(there)})
    options = DockerOptions(host=fake_docker.host, workspace="shared", timeout_s=PATIENCE_S)
    backend = DockerBackend(tmp_path / "data", options)
    try:
        with pytest.raises(BackendUnavailable, match="does not see"):
            await backend.create(SandboxId("sbx_" + "1" * 16), SPEC)
    finally:
        await backend.aclose()
    assert not (tmp_path / "var").exists()


@pytest.mark.parametrize("seed", range(100 if LONG else 25))
async def test_a_nonsensical_engine_answer_is_a_typed_error(
    seed: int, fake_docker: FakeDocker, backend: DockerBackend
):
    chance = random.Random(seed)
    for question in chance.sample(sorted(PLAUSIBLE), 2):
        value = PLAUSIBLE[question]
        fake_docker.says(
            question, JUNK[seed % len(JUNK)] if value == b"" else changed(value, chance)
        )
    assert await ask_everything(backend) == []


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"NaN", b'"' + b"x" * 1000 + b'"'],
)
async def test_an_engine_answer_that_is_not_json_is_a_typed_error(
    body: bytes, fake_docker: FakeDocker, backend: DockerBackend
):
    fake_docker.says(".* /(info|containers|volumes|images)", body)
    assert await ask_everything(backend) == []


async def test_a_required_size_is_a_driver_option_of_the_volume(
    fake_docker: FakeDocker, client: DockerClient
):
    await client.make_volume("v", {"a": "b"}, 16 << 20)
    await client.make_volume("v", {"a": "b"})
    assert [json.loads(body) for body in fake_docker.bodies] == [
        {"Name": "v", "Labels": {"a": "b"}, "DriverOpts": {"size": "16777216"}},
        {"Name": "v", "Labels": {"a": "b"}},
    ]


async def _endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[")
    while True:
        writer.write(b"1," * 32_768)
        await writer.drain()


async def test_an_endless_engine_answer_is_cut_off_in_bounded_memory(
    fake_docker: FakeDocker, client: DockerClient
):
    fake_docker.says("GET /containers/json", _endless)
    fake_docker.says("GET /containers/[^/]+/logs", _endless)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BackendUnavailable, match="longer than"):
        await client.containers()
    with pytest.raises(BackendUnavailable, match="longer than"):
        await client.logs(ID)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 160 * 1024


async def test_redirects_of_an_engine_are_not_followed(
    fake_docker: FakeDocker, client: DockerClient
):
    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answered(b"", "307 Temporary Redirect", "Location: /elsewhere"))
        await writer.drain()

    fake_docker.says("GET /info", elsewhere)
    with pytest.raises(BackendUnavailable, match="another address"):
        await client.info()
    assert not any("elsewhere" in question for question in fake_docker.asked)


async def test_an_engine_failure_without_a_message_is_a_typed_error(
    fake_docker: FakeDocker, backend: DockerBackend
):
    async def failing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answered(json.dumps({"massage": 1}).encode(), "500 No"))
        await writer.drain()

    fake_docker.says(".*", failing)
    assert await ask_everything(backend) == []


# ---- the stream of a command


def _upgraded(respond: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> Any:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
        await respond(writer)

    return speak


async def _opened(client: DockerClient) -> ExecStream:
    return ExecStream(await client.run_stream(ID, ["x"], "999:999"))


async def test_a_stream_frame_of_four_gigabytes_is_forwarded_in_pieces(
    fake_docker: FakeDocker, client: DockerClient
):
    async def huge(writer: asyncio.StreamWriter) -> None:
        writer.write(struct.pack(">BxxxL", 1, 0xFFFF_FFFF))
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    fake_docker.says("POST /exec/", _upgraded(huge))
    stream = await _opened(client)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    total = 0
    async with asyncio.timeout(PATIENCE_S):
        while total < 64 * MIB:
            total += len(await stream.receive(65536))
    await asyncio.sleep(0.2)
    await stream.aclose()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


async def test_stream_frames_split_anywhere_are_reassembled(
    fake_docker: FakeDocker, client: DockerClient
):
    whole = struct.pack(">BxxxL", 1, 5) + b"hello" + struct.pack(">BxxxL", 2, 3) + b"err"
    whole += struct.pack(">BxxxL", 1, 0) + struct.pack(">BxxxL", 1, 1) + b"!"

    async def slowly(writer: asyncio.StreamWriter) -> None:
        for byte in whole:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)

    fake_docker.says("POST /exec/", _upgraded(slowly))
    stream = await _opened(client)
    output = b""
    while part := await stream.receive(100):
        output += part
    await stream.aclose()
    assert (output, stream.told) == (b"hello!", "err")


async def test_engine_output_is_not_mistaken_for_the_runners(
    fake_docker: FakeDocker, backend: DockerBackend
):
    """An engine that cannot start a command writes its error where the output would be."""
    message = b"OCI runtime exec failed: exec failed: cannot exec in a stopped container"

    async def fail(writer: asyncio.StreamWriter) -> None:
        writer.write(struct.pack(">BxxxL", 1, len(message)) + message)
        await writer.drain()

    fake_docker.says("POST /exec/", _upgraded(fail))
    cell = await backend.attach(SandboxId(BOX))
    with pytest.raises(Busy, match="OCI runtime exec failed"):
        await cell.dial()


async def test_endless_error_output_ends_with_the_hello_timeout(
    fake_docker: FakeDocker, backend: DockerBackend, monkeypatch: pytest.MonkeyPatch
):
    async def complain(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(struct.pack(">BxxxL", 2, 65536) + b"x" * 65536)
            await writer.drain()

    monkeypatch.setattr(cells, "_HELLO_S", 0.5)
    fake_docker.says("POST /exec/", _upgraded(complain))
    cell = await backend.attach(SandboxId(BOX))
    with pytest.raises(Busy) as failed:
        await cell.dial()
    assert len(failed.value.message) < 1000
