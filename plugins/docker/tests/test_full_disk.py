"""A full engine disk and concurrent creates: typed errors, and nothing left half-made."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from plugins.docker.tests.site import FAR, LONG, nothing_left, opened, sh
from sandkasten.errors import QuotaExceeded, SandkastenError
from sandkasten.model.ids import SandboxId
from sandkasten_docker import resource_names
from tests.engines import stock
from tests.engines.engine import Engine
from tests.patience import FAR_TOO_LATE_S

# Engines are filled, or asked for much at once.
pytestmark = [pytest.mark.timeout(300), pytest.mark.promise("P58")]
_BYTES = 48 << 20


@pytest.fixture(autouse=True)
def long_undo_timeout(monkeypatch):
    """A failed create is undone completely, also on a busy machine."""
    monkeypatch.setattr("sandkasten_docker.backend._UNDO_S", 2 * FAR_TOO_LATE_S)


@pytest.fixture
def small_docker(tmp_path_factory):
    """An engine whose disk is a few megabytes."""
    folder = Path(tmp_path_factory.mktemp("small")) / "engine"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={_BYTES}", "small", str(folder)]
    subprocess.run(words, check=True)
    try:
        with Engine(folder) as docker_engine:
            stock.put(docker_engine.reached, "busybox")
            yield docker_engine
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def test_a_full_engine_disk_is_a_typed_error_and_no_sandbox_is_lost(small_docker, data):
    docker_engine = small_docker.reached
    async with opened(data, docker_engine) as sand:
        greedy, modest = [(await sand.create(FAR)).id for _ in range(2)]
        await sh(sand, modest, "X=kept")
        filled = await sh(sand, greedy, "cat /dev/zero > fill; echo x > more")
        assert b"No space left on device" in filled.stderr
        for _ in range(2):
            with pytest.raises(QuotaExceeded) as refused:
                await sand.create(FAR)
            assert refused.value.hint
        there = await asyncio.to_thread(docker_engine.containers)
        assert there == sorted((greedy, modest))
        # Those that are there live on, and are told by name what they cannot have.
        assert (await sh(sand, modest, "echo $X; echo y > file")).stdout == b"kept\n"
        with pytest.raises(QuotaExceeded):
            await sand.files.write(modest, "/workspace/file", b"y" * 8192)
        await sh(sand, greedy, "rm -f fill more")
        # A full engine may be unable even to forget a volume; what could not go then goes now.
        assert (await sand.sweep()).failed == ()
        own_volumes = [resource_names.volume_name(SandboxId(the_id)) for the_id in (greedy, modest)]
        volumes = [
            name for name in docker_engine.volumes() if not name.startswith("sandkasten-runner-")
        ]
        assert volumes == sorted([*own_volumes, *(f"{name}-home" for name in own_volumes)])
        new = (await sand.create(FAR)).id
        assert (await sh(sand, new, "echo new")).stdout == b"new\n"
        await sand.files.write(modest, "/workspace/file", b"y" * 8192)
        assert (await sh(sand, modest, "echo $X")).stdout == b"kept\n"
    assert await nothing_left(docker_engine, data) == []


@pytest.mark.parametrize("mode", ["volume", "bind"] if LONG else ["volume"])
@pytest.mark.long(reason="`make test` cancels creates on the other backends")
async def test_cancelled_concurrent_creates_leave_nothing(docker_engine, data, mode):
    async with opened(data, docker_engine, mode) as sand:
        first = (await sand.create(FAR)).id
        making = [asyncio.create_task(sand.create(FAR)) for _ in range(20)]
        await asyncio.sleep(0.3)
        given_up = making[::4]
        for number, doomed in enumerate(given_up):
            await asyncio.sleep(0.05 * number)
            doomed.cancel()
        results = await asyncio.gather(*making, return_exceptions=True)
        for task, result in zip(making, results, strict=True):
            if task not in given_up:
                assert not isinstance(result, BaseException), result
        ids = {info.id for info in results if not isinstance(info, BaseException)}
        assert {info.id for info in await sand.list(all=True)} == {first, *ids}
        assert len(ids) >= 15
        there = await asyncio.to_thread(docker_engine.containers)
        assert set(there) == {first, *ids}
        outputs = await asyncio.gather(*(sh(sand, the_id, "echo works") for the_id in ids))
        assert {output.stdout for output in outputs} == {b"works\n"}
        ended = await asyncio.gather(
            *(sand.destroy(the_id) for the_id in ids), return_exceptions=True
        )
        assert [end for end in ended if isinstance(end, SandkastenError)] == []
    assert await nothing_left(docker_engine, data) == []
