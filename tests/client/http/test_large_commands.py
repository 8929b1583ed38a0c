"""Commands with large input, output and arguments, over HTTP."""

from __future__ import annotations

import hashlib
import os

import pytest

import sandkasten
from sandkasten import AsyncSandbox, InvalidRequest
from sandkasten.client.transfer import large_stdin


@pytest.fixture
async def abox(served):
    async with AsyncSandbox(**served.where) as made:
        yield made


@pytest.fixture
def small_pieces(monkeypatch):
    """Stdin of 50 MiB takes the same path; see the test marked long."""
    monkeypatch.setattr(large_stdin, "LARGE", 1000)
    monkeypatch.setattr(large_stdin, "_PIECE", 100_000)


async def test_stdin_that_is_too_large_for_json_arrives_in_pieces(abox, small_pieces):
    data = bytes(range(256)) * 2000
    await abox.exec("export KEPT=1; cd /tmp")
    found = await abox.exec("echo $KEPT $(pwd); sha256sum", stdin=data)
    assert found.output == f"1 /tmp\n{hashlib.sha256(data).hexdigest()}  -\n"
    assert (await abox.exec(["wc", "-c"], stdin=data)).stdout.strip() == str(len(data))
    async with abox.exec_stream(["wc", "-c"], stdin=data) as stream:
        text = "".join([piece.text async for piece in stream])
    assert (text.strip(), stream.result.exit_code) == (str(len(data)), 0)
    begun = await abox.start(["wc", "-c"], stdin=data)
    assert (await begun.wait()).stdout.strip() == str(len(data))


async def test_a_command_may_end_or_fail_without_reading_a_large_stdin(abox, small_pieces):
    data = b"x" * 1_000_000
    assert (await abox.exec(["sh", "-c", "exit 3"], stdin=data)).exit_code == 3
    late = await abox.exec(["sleep", "1000"], stdin=data, timeout_ms=300)
    assert late.timed_out
    with pytest.raises(InvalidRequest, match="max_exec_timeout_seconds"):
        await abox.exec(["cat"], stdin=data, timeout_seconds=10_000)
    with pytest.raises(sandkasten.CommandNotFound):
        await abox.exec(["/nothing"], stdin=data)
    cut = await abox.exec(["cat"], stdin=data, max_output_bytes=10, raw_output=True)
    assert (cut.stdout, cut.truncated, cut.stdout_bytes) == ("x" * 10, True, len(data))


@pytest.mark.long("50 MiB through the daemon")
async def test_stdin_of_50_mib(abox):
    data = os.urandom(50 << 20)
    found = await abox.exec(["sha256sum"], stdin=data)
    assert found.stdout == f"{hashlib.sha256(data).hexdigest()}  -\n"


async def test_more_output_than_8_mib_is_kept_on_request(abox):
    size = 9 << 20
    command = ["sh", "-c", f"head -c {size} /dev/zero | tr '\\0' x"]
    found = await abox.exec(command, max_output_bytes=16 << 20)
    assert (len(found.stdout_data), found.truncated) == (size, False)
    with pytest.raises(InvalidRequest) as error:
        await abox.exec(["true"], max_output_bytes=33 << 20)
    assert error.value.details == {"field": "max_output_bytes"}


async def test_arguments_of_more_than_one_mib_in_total(abox):
    words = ["x" * 100_000] * 15
    found = await abox.exec(["sh", "-c", "echo $#", "sh", *words])
    assert found.stdout == "15\n"
    with pytest.raises(sandkasten.PayloadTooLarge, match="1900002 bytes") as caught:
        await abox.exec(["x", "y", *words, *words[:4]])
    assert "stdin" in caught.value.hint
    with pytest.raises(sandkasten.PayloadTooLarge):
        await abox.exec(["echo", "x" * 131_072])
