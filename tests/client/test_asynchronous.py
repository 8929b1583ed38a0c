"""The asynchronous client: cancellation, concurrency, several event loops."""

from __future__ import annotations

import asyncio

import pytest

import sandkasten
from sandkasten import AsyncSandbox
from sandkasten.client.server import server_pool

pytestmark = pytest.mark.anyio


async def test_an_asynchronous_sandbox_can_be_awaited_and_closed():
    box = await AsyncSandbox(backend="unisolated")
    assert (await box.exec("echo forty-two")).output == "forty-two\n"
    await box.close()
    with pytest.raises(sandkasten.SessionNotFound):
        await box.exec("true")


async def test_an_unstarted_sandbox_explains_how_to_start_it():
    with pytest.raises(sandkasten.InvalidRequest) as caught:
        await AsyncSandbox(backend="unisolated").exec("true")
    assert "async with" in caught.value.hint


async def test_many_commands_run_concurrently_in_their_own_processes(abox):
    results = await asyncio.gather(*(abox.exec(["echo", str(n)]) for n in range(20)))
    assert [one.stdout for one in results] == [f"{n}\n" for n in range(20)]


async def test_a_cancelled_block_still_destroys(abox):
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        async with AsyncSandbox(backend="unisolated") as box:
            stream = box.exec_stream(["sh", "-c", "echo begun; sleep 60"])
            await anext(stream)
            started.set_result(box.id)
            await stream.wait()

    task = asyncio.create_task(work())
    name = await started
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert name not in [info.id for info in await AsyncSandbox.list(backend="unisolated")]
    assert abox.id in [info.id for info in await AsyncSandbox.list(backend="unisolated")]


async def test_a_stream_that_is_abandoned_early_is_closed(abox):
    async with abox.exec_stream(["sh", "-c", "echo a; sleep 60"]) as stream:
        async for piece in stream:
            assert piece.text == "a\n"
            break
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert [one.status for one in await abox.execs()] == ["running"]


async def test_a_split_character_is_joined(abox):
    process = await abox.start(["cat"], keep_stdin_open=True)
    first, second = "ü".encode()
    stream = process.follow()
    await process.write_stdin(b"a" + bytes([first]))
    pieces = [(await anext(stream)).text]
    await process.write_stdin(bytes([second]))
    await process.close_stdin()
    pieces += [piece.text async for piece in stream]
    assert "".join(pieces) == "aü"
    assert "\ufffd" not in pieces[0]


async def test_data_can_come_from_an_asynchronous_source(abox):
    async def source():
        for number in range(3):
            yield str(number).encode() * 4

    await abox.write("made", source())
    assert await abox.read("made") == b"000011112222"


def test_each_event_loop_has_an_engine_that_is_closed_with_it():
    async def once() -> str:
        async with AsyncSandbox(backend="unisolated") as box:
            return (await box.exec("echo hi")).output

    for _ in range(3):
        assert asyncio.run(once()) == "hi\n"
    closed = [loop for loop in list(server_pool._by_loop) if loop.is_closed()]
    assert [held for loop in closed for held in server_pool._by_loop[loop].open] == []


def test_invalid_settings_are_refused_before_anything_is_created(monkeypatch):
    monkeypatch.setenv("SANDKASTEN_BACKEND", "nonsense")
    with pytest.raises(sandkasten.InvalidConfiguration):
        asyncio.run(AsyncSandbox().begin())


async def test_a_block_that_fails_raises_its_own_error_if_closing_fails_too(monkeypatch):
    lost = sandkasten.BackendUnavailable("the backend does not answer", hint="try again")

    async def close(_: object) -> None:
        raise lost

    box = AsyncSandbox(backend="unisolated")
    with monkeypatch.context() as patch:
        patch.setattr(AsyncSandbox, "close", close)
        with pytest.raises(ValueError, match="of the block") as caught:
            async with box:
                raise ValueError("of the block")
        with pytest.raises(sandkasten.BackendUnavailable):
            async with box:
                pass
    assert caught.value.__notes__ == [f"the sandbox was not destroyed: {lost}"]
    await box.close()
