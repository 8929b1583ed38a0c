"""A sandbox of a daemon is the same object as one of this process."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess

import pytest

import sandkasten
from sandkasten import (
    AsyncImages,
    AsyncSandbox,
    AsyncWorkspaces,
    Conflict,
    FileExists,
    FileNotFound,
    IsADirectory,
    Sandbox,
    SessionExpired,
    SessionNotFound,
    ShellNotFound,
    Unauthorized,
    UnsupportedByBackend,
)
from sandkasten.client.server.daemon_or_embedded import ServerAddress, place_of
from sandkasten.client.server.server_pool import connect
from sandkasten.errors import BackendUnavailable, InvalidRequest
from tests.patience import DEADLINES_S, PATIENCE_S


@pytest.fixture
async def abox(served):
    async with AsyncSandbox(**served.where) as made:
        yield made


@pytest.mark.promise("P35")
def test_the_shell_remembers(served):
    with Sandbox(**served.where) as box:
        box.exec("cd /tmp && export A=1")
        assert box.exec("echo $A; pwd").output == "1\n/tmp\n"
        the_id = box.id
    # A daemon remembers what was there.
    with pytest.raises(SessionExpired) as caught:
        Sandbox.attach(the_id, **served.where)
    assert caught.value.details["status"] == "destroyed"
    with pytest.raises(SessionNotFound):
        Sandbox.attach("sbx_0123456789abcdef", **served.where)


def test_the_environment_names_the_daemon(served, monkeypatch, tmp_path):
    monkeypatch.setenv("SANDKASTEN_URL", served.url)
    monkeypatch.setenv("SANDKASTEN_API_KEY", served.key)
    with Sandbox() as box:
        assert box.id in [info.id for info in Sandbox.list(**served.where)]
        # What is said wins over the environment.
        assert Sandbox.list(data_dir=tmp_path / "elsewhere") == []


def test_the_socket_needs_no_key(served, monkeypatch):
    monkeypatch.setenv("SANDKASTEN_API_KEY", "sk-of-another-daemon")
    with Sandbox(url=f"unix://{served.socket}") as box:
        assert box.exec("echo hi").stdout == "hi\n"


def test_a_wrong_key_is_refused(served):
    with pytest.raises(Unauthorized):
        Sandbox(url=served.url, api_key="sk-wrong")
    with pytest.raises(Unauthorized):
        Sandbox(url=served.url)


@pytest.mark.parametrize(
    "arguments",
    [{"url": "http://x", "data_dir": "/x"}, {"api_key": "sk"}, {"url": "nonsense"}],
)
def test_contradictory_daemon_addresses_are_refused(arguments):
    with pytest.raises(InvalidRequest):
        Sandbox(**arguments)


def test_a_key_is_not_shown():
    assert "sk-secret" not in repr(place_of(url="http://x", api_key="sk-secret"))


async def test_a_sandbox_has_the_requested_properties(served):
    async with AsyncSandbox(
        **served.where, labels={"a": "b"}, limits={"pids_limit": 50}, env={"B": "2"}, ttl_seconds=77
    ) as box:
        info = await box.info()
        assert (info.status, info.backend, info.image) == ("running", "unisolated", "host")
        assert (await box.exec("echo $B")).output == "2\n"
        assert (await box.stats()).usage.pids_limit == 50
        assert (await box.stats()).network.mode == "none"
        assert [one.name for one in await box.processes()]


@pytest.mark.promise("P30")
async def test_lifetime_and_labels_of_a_live_sandbox_can_be_changed(served):
    async with AsyncSandbox(**served.where, labels={"a": "b"}, ttl_seconds=100) as box:
        assert (await box.update(ttl_seconds=500)).idle_timeout_s == 500
        assert (await box.info()).labels == {"a": "b"}
        assert (await box.update(labels={})).labels == {}


async def test_a_list_is_a_process_and_its_failure_is_a_result(abox):
    result = await abox.exec(["sh", "-c", "echo out; echo err >&2; exit 7"], timeout_seconds=60)
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 7)
    with pytest.raises(subprocess.CalledProcessError):
        await abox.exec(["sh", "-c", "exit 7"], check=True)


async def test_a_hardened_sandbox_has_one_user(abox):
    assert (await abox.exec(["echo", "ok"], user="sandbox")).stdout == "ok\n"
    assert (await abox.exec("echo ok", user=1000)).stdout == "ok\n"
    for user in ("root", 0, "app", "app:team"):
        with pytest.raises(InvalidRequest, match="only profile dev has other users"):
            await abox.exec("id", user=user)
    for user in ("", "a b", "-x", "a:b:c"):
        with pytest.raises(InvalidRequest, match="user"):
            await abox.exec("id", user=user)
    with pytest.raises(InvalidRequest, match="exclude each other"):
        await abox.exec("id", user="sandbox", stateful=True)


async def test_the_user_of_every_file_method_reaches_the_sandbox(abox, tmp_path):
    (tmp_path / "f").write_bytes(b"x")
    await abox.write("f", b"x", user=1000)
    assert await abox.read("f", user="sandbox") == b"x"
    await abox.move("f", "g", user="sandbox")
    for attempt in (
        lambda: abox.write("f", b"", user="root"),
        lambda: abox.read("g", user="root"),
        lambda: abox.read("g", limit=0, user="root"),
        lambda: abox.ls(user="root"),
        lambda: abox.stat("g", user="root"),
        lambda: abox.exists("g", user="root"),
        lambda: abox.mkdir("d", user="root"),
        lambda: abox.move("g", "h", user="root"),
        lambda: abox.remove("g", user="root"),
        lambda: abox.upload(tmp_path / "f", "f", user="root"),
        lambda: abox.upload(tmp_path, "d", user="root"),
        lambda: abox.download("g", tmp_path / "g", user="root"),
        lambda: abox.upload_tar(bytes(1024), user="root"),
        lambda: abox.download_tar(".", io.BytesIO(), user="root"),
        lambda: anext(abox.watch(user="root")),
    ):
        with pytest.raises(InvalidRequest, match="only profile dev has other users"):
            await attempt()
    with pytest.raises(InvalidRequest, match="user"):
        await abox.read("g", user="a b")
    assert [one.name for one in await abox.ls()] == ["g"]


async def test_a_closed_shell_is_gone_with_its_jobs(abox):
    await abox.exec("sleep 1003 & A=1", shell="work")
    await abox.exec("A=2")
    await abox.close_shell("work")
    assert (await abox.exec("echo $A-$(jobs)", shell="work")).stdout == "-\n"
    assert (await abox.exec("echo $A")).stdout == "2\n"
    with pytest.raises(ShellNotFound, match="no shell never is open"):
        await abox.close_shell("never")
    with pytest.raises(InvalidRequest) as error:
        await abox.close_shell("a b")
    assert error.value.details == {"field": "shell"}


async def test_a_deadline_is_a_result(abox):
    for timeout_s in DEADLINES_S:
        result = await abox.exec("echo before; sleep 60", timeout_ms=timeout_s * 1000)
        if result.stdout:
            break
    assert (result.timed_out, result.stdout) == (True, "before\n")


async def test_bytes_that_are_not_utf8_survive(abox):
    result = await abox.exec(["cat"], stdin=b"\xff\x00\xfe")
    assert result.stdout_data == b"\xff\x00\xfe"


@pytest.mark.promise("P35")
async def test_output_arrives_while_the_command_runs(abox):
    stream = abox.exec_stream("echo one; sleep 0.5; echo two")
    first = await anext(stream)
    assert first.text == "one\n"
    with pytest.raises(InvalidRequest, match="not ended"):
        _ = stream.result
    rest = [piece.text async for piece in stream]
    assert (rest, stream.result.exit_code) == (["two\n"], 0)


@pytest.mark.promise("P35")
async def test_a_background_command_gets_input_is_followed_and_killed(abox):
    process = await abox.start(["cat"], keep_stdin_open=True)
    assert (await process.poll()).running
    await process.write_stdin("hello\n")
    follow = process.follow()
    assert (await anext(follow)).text == "hello\n"
    await follow.aclose()
    await process.close_stdin()
    assert (await process.wait()).exit_code == 0
    assert [piece.text for piece in await process.output()] == ["hello\n"]
    assert process.exec_id in [one.exec_id for one in await abox.execs()]
    other = await abox.start(["sleep", "60"])
    await other.signal("TERM")
    assert (await other.wait(PATIENCE_S)).signal == 15
    ran = [one.exec_id for one in await abox.execs()]
    assert ran == [process.exec_id, other.exec_id]


@pytest.mark.promise("P35")
async def test_files_are_written_and_read_completely_and_in_parts(abox):
    data = os.urandom(3_000_000)
    entry = await abox.write("deep/in.bin", data, mode=0o600)
    assert (entry.path, entry.size, entry.mode) == ("/workspace/deep/in.bin", len(data), 0o600)
    assert await abox.read("deep/in.bin") == data
    part = await abox.read("deep/in.bin", offset=10, limit=5)
    assert (bytes(part), part.size, part.truncated) == (data[10:15], len(data), True)
    assert await abox.read("deep/in.bin", offset=len(data) - 2) == data[-2:]
    cut = await abox.read("deep/in.bin", max_bytes=0)
    assert (bytes(cut), cut.truncated, cut.size) == (b"", True, len(data))
    behind = await abox.read("deep/in.bin", offset=len(data) + 5)
    assert (bytes(behind), behind.truncated) == (b"", False)
    await abox.write("empty", b"")
    assert await abox.read("empty", limit=5) == b""


async def test_a_stream_is_uploaded_as_it_arrives(abox):
    async def pieces():
        for number in range(50):
            yield f"{number}\n".encode() * 1000

    await abox.write("big", pieces())
    whole = b"".join(f"{number}\n".encode() * 1000 for number in range(50))
    assert await abox.read("big") == whole
    await abox.write("file", io.BytesIO(b"from a file"))
    assert await abox.read("file") == b"from a file"


async def test_the_other_file_operations_work_over_http(abox):
    await abox.mkdir("d/e")
    await abox.write("d/e/f", "x")
    await abox.move("d/e/f", "d/g")
    assert [one.path for one in await abox.ls("d", recursive=True)] == [
        "/workspace/d/e",
        "/workspace/d/g",
    ]
    assert await abox.exists("d/g")
    assert await abox.remove("d", recursive=True) == 3
    assert not await abox.exists("d")


async def test_failures_have_the_same_classes_as_in_process(abox):
    await abox.write("a", "x")
    with pytest.raises(FileNotFound):
        await abox.read("nothing")
    with pytest.raises(FileExists):
        await abox.write("a", "y", overwrite=False)
    await abox.mkdir("dir")
    with pytest.raises(IsADirectory):
        await abox.read("dir")
    with pytest.raises(InvalidRequest):
        await abox.exec("x", cwd="\0")


async def test_trees_are_uploaded_and_downloaded(abox, tmp_path):
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "sub" / "file").write_text("content")
    (tmp_path / "in" / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "in" / "run.sh").chmod(0o755)
    moved = await abox.upload(tmp_path / "in", "tree")
    assert (moved.files, moved.path) == (2, "/workspace/tree")
    back = await abox.download("tree", tmp_path / "out")
    assert back.files == 2
    assert (tmp_path / "out" / "sub" / "file").read_text() == "content"
    assert (tmp_path / "out" / "run.sh").stat().st_mode & 0o777 == 0o755
    await abox.download("tree/sub/file", tmp_path / "one")
    assert (tmp_path / "one").read_text() == "content"


async def test_file_changes_are_watched(abox):
    watch = abox.watch()
    coming = asyncio.ensure_future(anext(watch))
    for _ in range(int(PATIENCE_S / 0.1)):
        await asyncio.sleep(0.1)
        await abox.write("seen", os.urandom(4))
        if coming.done():
            break
    change = await coming
    assert change.path.startswith("/workspace/")
    await watch.aclose()


@pytest.mark.promise("P35")
async def test_a_terminal_types_resizes_and_ends(abox):
    async with abox.terminal(rows=30, cols=90, env={"TERM": "dumb"}) as terminal:
        assert terminal.exec_id
        await terminal.resize(40, 100)
        await terminal.send("echo term=$TERM; exit 4\n")
        shown = b"".join([piece async for piece in terminal])
        assert b"term=dumb" in shown
        assert (await terminal.result()).exit_code == 4


async def test_closing_a_terminal_hangs_up(abox):
    async with abox.terminal() as terminal:
        await terminal.send("sleep 60\n")
        the_id = terminal.exec_id
    assert not (await abox.process(the_id).wait(PATIENCE_S)).running


async def test_a_terminal_in_an_unknown_sandbox_is_refused_with_the_reason(served):
    box = await AsyncSandbox(**served.where)
    await box.close()
    transport = await connect(place_of(**served.where))
    with pytest.raises(SessionExpired):
        async with transport.terminal(box._id or ""):
            pass


async def test_one_session_key_is_one_sandbox(served):
    boxes = await asyncio.gather(
        *(AsyncSandbox(**served.where, session_key="one").begin() for _ in range(5))
    )
    assert len({box.id for box in boxes}) == 1
    await boxes[0].close()


@pytest.mark.promise("P16")
async def test_a_retried_command_runs_once(abox):
    for _ in range(2):
        result = await abox.exec("echo x >> count; cat count", idempotency_key="same")
    assert result.output == "x\n"


def test_a_one_shot_runs_in_the_daemon(served):
    result = sandkasten.run("echo $1 > out; cat in", "sh", args=["a"], files={"in": b"\xff"},
                            artifacts=["out"], **served.where)  # fmt: skip
    assert (result.ok, result.stdout_data) == (True, b"\xff")
    assert result.artifacts[0].data == b"a\n"


async def test_workspaces_and_images_of_a_daemon_are_accessible(served):
    spaces = AsyncWorkspaces(**served.where)
    await spaces.create("alpha", size_mb=20)
    async with AsyncSandbox(**served.where, workspace="alpha") as box:
        await box.write("kept", "x")
        assert (await spaces.get("alpha")).used_by == (box.id,)
        with pytest.raises(Conflict):
            await spaces.delete("alpha")
    await spaces.copy("alpha", "beta")
    assert [one.name for one in await spaces.list()] == ["alpha", "beta"]
    for name in ("alpha", "beta"):
        await spaces.delete(name)
    images = AsyncImages(**served.where)
    assert await images.list() == []
    assert (await images.usage()).images == 0


async def test_host_only_operations_are_refused_by_name(served, tmp_path):
    transport = await connect(place_of(**served.where))
    for asking in (transport.probe("oci"), transport.sweep()):
        with pytest.raises(UnsupportedByBackend) as caught:
            await asking
        assert "on its machine" in caught.value.hint
    with pytest.raises(UnsupportedByBackend):
        await AsyncImages(**served.where).export("x", tmp_path / "x")


async def test_a_daemon_reports_what_its_machine_has(served):
    transport = await connect(place_of(**served.where))
    machine = await transport.probe()
    assert machine.ready, machine
    default, *_ = await transport.tiers()
    assert (default.default, default.ready, default.tried) == (True, True, False)


async def test_a_stopped_daemon_is_reported(tmp_path):
    with pytest.raises(BackendUnavailable, match="no daemon answers"):
        await (await connect(ServerAddress(url=f"unix://{tmp_path}/none"))).list()


@pytest.mark.promise("P30")
async def test_listing_does_not_count_as_activity(served, abox):
    transport = await connect(place_of(**served.where))
    before = (await abox.info()).expires_at
    # Two clocks are read for it one after the other: what differs by less may be a pause of ours.
    await asyncio.sleep(1)
    assert (await transport.usage(abox.id)).pids_limit == 256
    assert (await abox.info()).expires_at == pytest.approx(before, abs=0.5)
    await transport.stats(abox.id)
    assert (await abox.info()).expires_at == pytest.approx(before, abs=0.5)
    # The innocent twin: a command is an activity.
    await abox.exec("true")
    assert (await abox.info()).expires_at > before + 0.5
