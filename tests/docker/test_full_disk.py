"""A full engine disk and concurrent creates: typed errors, and nothing left half-made."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from sandkasten.backends.docker import resource_names
from sandkasten.errors import QuotaExceeded, SandkastenError
from sandkasten.model.ids import SandboxId
from tests.docker.site import FAR, LONG, nothing_left, opened, sh
from tests.engines import stock
from tests.engines.engine import Engine
from tests.patience import FAR_TOO_LATE_S

# Engines are filled, or asked for much at once.
pytestmark = [pytest.mark.timeout(300), pytest.mark.promise("P58")]
_BYTES = 48 << 20


@pytest.fixture(autouse=True)
def long_undo_timeout(monkeypatch):
    """A failed create is undone completely, also on a busy machine."""
    monkeypatch.setattr("sandkasten.backends.docker.backend._UNDO_S", 2 * FAR_TOO_LATE_S)


@pytest.fixture
def small_engine(tmp_path_factory):
    """An engine whose disk is a few megabytes."""
    folder = Path(tmp_path_factory.mktemp("small")) / "engine"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={_BYTES}", "small", str(folder)]
    subprocess.run(words, check=True)
    try:
        with Engine(folder) as engine:
            stock.put(engine.reached, "busybox")
            yield engine
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def test_a_full_engine_disk_is_a_typed_error_and_no_sandbox_is_lost(small_engine, data):
    engine = small_engine.reached
    async with opened(data, engine) as sand:
        greedy, modest = [(await sand.create(FAR)).id for _ in range(2)]
        await sh(sand, modest, "X=kept")
        filled = await sh(sand, greedy, "cat /dev/zero > fill; echo x > more")
        assert b"No space left on device" in filled.stderr
        for _ in range(2):
            with pytest.raises(QuotaExceeded) as refused:
                await sand.create(FAR)
            assert refused.value.hint
        there = await asyncio.to_thread(engine.containers)
        assert there == sorted((greedy, modest))
        # Those that are there live on, and are told by name what they cannot have.
        assert (await sh(sand, modest, "echo $X; echo y > file")).stdout == b"kept\n"
        with pytest.raises(QuotaExceeded):
            await sand.files.write(modest, "/workspace/file", b"y" * 8192)
        await sh(sand, greedy, "rm -f fill more")
        # A full engine may be unable even to forget a volume; what could not go then goes now.
        assert (await sand.sweep()).failed == ()
        kept = [resource_names.volume_name(SandboxId(one)) for one in (greedy, modest)]
        volumes = [one for one in engine.volumes() if not one.startswith("sandkasten-runner-")]
        assert volumes == sorted([*kept, *(f"{one}-home" for one in kept)])
        new = (await sand.create(FAR)).id
        assert (await sh(sand, new, "echo new")).stdout == b"new\n"
        await sand.files.write(modest, "/workspace/file", b"y" * 8192)
        assert (await sh(sand, modest, "echo $X")).stdout == b"kept\n"
    assert await nothing_left(engine, data) == []


@pytest.mark.parametrize("mode", ["volume", "bind"] if LONG else ["volume"])
@pytest.mark.long(reason="`make test` cancels creates on the other backends")
async def test_cancelled_concurrent_creates_leave_nothing(engine, data, mode):
    async with opened(data, engine, mode) as sand:
        first = (await sand.create(FAR)).id
        making = [asyncio.create_task(sand.create(FAR)) for _ in range(20)]
        await asyncio.sleep(0.3)
        given_up = making[::4]
        for number, one in enumerate(given_up):
            await asyncio.sleep(0.05 * number)
            one.cancel()
        found = await asyncio.gather(*making, return_exceptions=True)
        for task, result in zip(making, found, strict=True):
            if task not in given_up:
                assert not isinstance(result, BaseException), result
        ids = {one.id for one in found if not isinstance(one, BaseException)}
        assert {one.id for one in await sand.list(all=True)} == {first, *ids}
        assert len(ids) >= 15
        there = await asyncio.to_thread(engine.containers)
        assert set(there) == {first, *ids}
        said = await asyncio.gather(*(sh(sand, one, "echo works") for one in ids))
        assert {one.stdout for one in said} == {b"works\n"}
        ended = await asyncio.gather(*(sand.destroy(one) for one in ids), return_exceptions=True)
        assert [one for one in ended if isinstance(one, SandkastenError)] == []
    assert await nothing_left(engine, data) == []
