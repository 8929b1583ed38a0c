"""As whom requests of E2B's SDKs act, on real sandboxes: the home, the user, and root beside it."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.client.server.embedded import ServerAddress, settings
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.images.image_info import ImportRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_e2b import sandbox_accounts
from sandkasten_e2b.connect_codec import STREAM, envelope
from sandkasten_e2b.e2b_assembly import open_e2b
from sandkasten_e2b.sandbox_accounts import SandboxAccount
from sandkasten_runtime.assembly.engine_assembly import open_engine
from tests import imagekit
from tests.api.daemon_with_database import AS_OPERATOR, booked
from tests.e2b_requests import E2b

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SLEEP = ExecRequest(("/bin/sleep", "600"))
FILESYSTEM = "/filesystem.Filesystem"
pytestmark = [pytest.mark.root, pytest.mark.promise("P79")]


@pytest.fixture(params=["hardened", "dev"])
async def box(request, tmp_path) -> AsyncIterator[tuple[E2b, str, str]]:
    engine = await open_engine(settings(ServerAddress(str(tmp_path / "data"), "local")))
    try:
        await engine.images.import_archive(str(imagekit.busybox_tar()), ImportRequest("base"))
        async with (
            open_e2b(b"k" * 32, {}, engine=engine, profile=request.param) as routes,
            booked(engine, tmp_path / "data", more=routes) as daemon,
        ):
            e2b = E2b(daemon)
            yield e2b, await e2b.create(), request.param
    finally:
        for info in await engine.list(all=True):
            await engine.destroy(info.id)
        await engine.aclose()


def _as(user: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:".encode()).decode()}


async def _printed(e2b: E2b, the_id: str, script: str, user: str = "", **more: Any) -> list[str]:
    process = {"cmd": "/bin/sh", "args": ["-c", script], **more}
    headers = _as(user) if user else {}
    body = {"process": process, "stdin": False}
    events = await e2b.stream(the_id, "/process.Process/Start", body, **headers)
    data = [
        one["event"]["data"].get("stdout", "") for one in events if "data" in one.get("event", {})
    ]
    return b"".join(base64.b64decode(one) for one in data).decode().splitlines()


async def test_commands_start_in_the_home_as_its_user(box):
    e2b, the_id, profile = box
    look = "pwd -P; echo $HOME; id -u; touch made && stat -c %u made"
    assert await _printed(e2b, the_id, look) == ["/home/user", "/home/user", "1000", "1000"]
    assert await _printed(e2b, the_id, "pwd -P", cwd="/workspace") == ["/workspace"]
    assert await _printed(e2b, the_id, "pwd -P", cwd="/tmp") == ["/tmp"]
    uid = "0" if profile == "dev" else "1000"
    assert await _printed(e2b, the_id, "id -u", "root") == [uid]
    if profile == "dev":
        assert await _printed(e2b, the_id, "touch /etc/new && echo made", "root") == ["made"]
        assert await _printed(e2b, the_id, "touch /etc/other 2>&- || echo refused") == ["refused"]


async def test_files_belong_to_the_user_that_wrote_them(box):
    e2b, the_id, profile = box
    form = {"Content-Type": "application/octet-stream"}
    status, _ = await e2b.send(the_id, "/files?path=a/mine", b"x", **form)
    assert status == 200
    status, _ = await e2b.send(the_id, "/files?path=roots&username=root", b"x", **form)
    assert status == 200
    _, made = await e2b.call(the_id, "/filesystem.Filesystem/MakeDir", {"path": "dir"})
    assert made["entry"]["owner"] == "user"
    owners = {}
    for name in ("a", "a/mine", "roots"):
        _, found = await e2b.call(the_id, "/filesystem.Filesystem/Stat", {"path": name})
        owners[name] = found["entry"]["owner"]
    root = "root" if profile == "dev" else "user"
    assert owners == {"a": "user", "a/mine": "user", "roots": root}
    assert await _printed(e2b, the_id, "rm -r a dir && echo removed") == ["removed"]


async def _as_root(e2b: E2b, the_id: str, script: str) -> None:
    """Run a script before the sandbox is looked into."""
    done = await e2b.daemon.server.engine.exec(the_id, ExecRequest(("/bin/sh", "-c", script)))
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize("box", ["dev"], indirect=True)
async def test_the_calls_of_a_user_see_what_the_user_may_see(box):
    e2b, the_id, _ = box
    script = "mkdir -m 700 closed && touch closed/secret && ln -s closed/secret link"
    assert await _printed(e2b, the_id, f"{script} && echo made", "root") == ["made"]
    closed, watched = {"path": "closed"}, {"path": "closed", "recursive": False}
    watch = e2b.stream(the_id, f"{FILESYSTEM}/WatchDir", watched)
    assert "permission" in str((await watch)[-1]["error"])
    seen = {}
    for verb, body in (("ListDir", closed), ("CreateWatcher", watched)):
        for user in ("user", "root"):
            status, _ = await e2b.call(the_id, f"{FILESYSTEM}/{verb}", body, **_as(user))
            seen[verb, user] = status == 200
    assert seen == {
        ("ListDir", "user"): False,
        ("ListDir", "root"): True,
        ("CreateWatcher", "user"): False,
        ("CreateWatcher", "root"): True,
    }
    kinds = {}
    for user in ("user", "root"):
        _, found = await e2b.call(the_id, f"{FILESYSTEM}/ListDir", {"path": "."}, **_as(user))
        [kinds[user]] = [one["type"] for one in found["entries"] if one["name"] == "link"]
    assert kinds == {"user": "FILE_TYPE_SYMLINK", "root": "FILE_TYPE_FILE"}


async def test_metadata_are_read_as_the_user(box):
    e2b, the_id, profile = box
    form = {"Content-Type": "application/octet-stream", "X-Metadata-author": "root"}
    status, _ = await e2b.send(the_id, "/files?path=noted&username=root", b"x", **form)
    assert status == 200
    await _printed(e2b, the_id, "chmod 600 noted", "root")
    seen = {}
    for user in ("user", "root"):
        _, found = await e2b.call(the_id, f"{FILESYSTEM}/Stat", {"path": "noted"}, **_as(user))
        seen[user] = found["entry"].get("metadata")
    known = {"author": "root"}
    assert seen == {"user": None if profile == "dev" else known, "root": known}


async def test_a_look_that_fails_is_repeated(box):
    e2b, the_id, _ = box
    engine = e2b.daemon.server.engine
    await engine.pause(the_id)
    body = envelope({"process": {"cmd": "/bin/true"}, "stdin": False})
    status, _ = await e2b.send(the_id, "/process.Process/Start", body, **{"Content-Type": STREAM})
    assert status == 502
    await engine.resume(the_id)
    assert await _printed(e2b, the_id, "pwd -P") == ["/home/user"]


@pytest.mark.parametrize("box", ["dev"], indirect=True)
async def test_a_look_that_takes_too_long_is_repeated(box, monkeypatch):
    e2b, the_id, _ = box
    # Its open waits for a writer.
    await _as_root(e2b, the_id, "mv /etc/passwd /etc/users && mkfifo /etc/passwd")
    with monkeypatch.context() as patch:
        patch.setattr(sandbox_accounts, "_LOOK_S", 0.5)
        body = {"process": {"cmd": "/bin/true"}, "stdin": False}
        [end] = await e2b.stream(the_id, "/process.Process/Start", body)
    assert end["error"]["message"].startswith("the sandbox did not answer in time")
    await _as_root(e2b, the_id, "mv /etc/users /etc/passwd")
    assert await _printed(e2b, the_id, "pwd -P") == ["/home/user"]


async def test_a_short_limit_of_commands_does_not_prevent_the_look(box):
    e2b, _, profile = box
    engine = e2b.daemon.server.engine
    limits = {"max_exec_timeout_seconds": 5, "exec_timeout_seconds": 5}
    options = SandboxOptions(profile=profile, image="base", limits=limits)
    info = await engine.create(CreateRequest(options))
    assert await _printed(e2b, info.id, "pwd -P") == ["/home/user"]


async def _boot_id(e2b: E2b, the_id: str) -> str:
    status, raw = await e2b.send_get(the_id, "/files?path=/proc/sys/kernel/random/boot_id")
    assert status == 200
    return str(raw.decode())


async def _sleeps(e2b: E2b, the_id: str) -> int:
    _, found = await e2b.call(the_id, "/process.Process/List", {})
    return sum(one["config"]["args"][-1:] == ["600"] for one in found["processes"])


async def _pause_and_connect(e2b: E2b, the_id: str, body: object) -> None:
    assert (await e2b.ask("POST", f"/sandboxes/{the_id}/pause", body))[0] == 204
    assert (await e2b.ask("POST", f"/sandboxes/{the_id}/connect", {"timeout": 60}))[0] == 201


async def test_a_pause_without_memory_is_a_new_start(box):
    e2b, the_id, _ = box
    await _printed(e2b, the_id, "echo kept > file")
    await e2b.daemon.server.engine.exec_start(the_id, SLEEP)
    first = await _boot_id(e2b, the_id)
    for body, changed in (({}, False), ({"memory": True}, False), ({"memory": False}, True)):
        assert await _sleeps(e2b, the_id) == 1
        await _pause_and_connect(e2b, the_id, body)
        assert (await _boot_id(e2b, the_id) != first) is changed, body
    assert await _sleeps(e2b, the_id) == 0
    assert await _printed(e2b, the_id, "cat file") == ["kept"]


@pytest.mark.parametrize("box", ["dev"], indirect=True)
async def test_processes_that_could_not_be_ended_keep_the_boot_id(box):
    e2b, the_id, _ = box
    await e2b.daemon.server.engine.exec_start(the_id, SLEEP)
    await _as_root(e2b, the_id, "rm /bin/sh")
    first = await _boot_id(e2b, the_id)
    await _pause_and_connect(e2b, the_id, {"memory": False})
    assert (await _boot_id(e2b, the_id), await _sleeps(e2b, the_id)) == (first, 1)


async def test_files_of_a_snapshot_belong_to_the_user(box):
    e2b, the_id, _ = box
    await _printed(e2b, the_id, "touch kept && ln -s nowhere link")
    status, snapshot = await e2b.ask("POST", f"/sandboxes/{the_id}/snapshots", {})
    assert status == 201, snapshot
    copy = await e2b.create(templateID=snapshot["snapshotID"])
    assert await _printed(e2b, copy, "stat -c '%n %u' kept link") == ["kept 1000", "link 1000"]


@pytest.mark.parametrize("box", ["dev"], indirect=True)
async def test_a_snapshot_whose_files_stay_roots_is_refused(box, tmp_path):
    e2b, _, _ = box
    archive = tmp_path / "image.tar"
    _without_chown(imagekit.busybox_tar(), archive)
    await e2b.daemon.server.engine.images.import_archive(str(archive), ImportRequest("nochown"))
    source = await e2b.create(templateID="nochown")
    _, snapshot = await e2b.ask("POST", f"/sandboxes/{source}/snapshots", {})
    before = await e2b.ask("GET", "/sandboxes")
    status, told = await e2b.ask("POST", "/sandboxes", {"templateID": snapshot["snapshotID"]})
    assert (status, "could not be given to the user: not today" in told["message"]) == (409, True)
    assert await e2b.ask("GET", "/sandboxes") == before


def _without_chown(source: Path, target: Path) -> None:
    """Copy an image, with a `chown` that fails."""
    script = b"#!/bin/sh\necho not today >&2\nexit 1\n"
    with tarfile.open(source) as tar, tarfile.open(target, "w") as copy:
        for member in tar.getmembers():
            data = tar.extractfile(member) if member.isfile() else None
            if member.name.endswith("bin/chown"):
                member = tarfile.TarInfo(member.name)
                member.mode, member.size, data = 0o755, len(script), io.BytesIO(script)
            copy.addfile(member, data)


async def test_the_history_names_programs_of_ours(box):
    e2b, the_id, profile = box
    await _printed(e2b, the_id, "true")
    _, snapshot = await e2b.ask("POST", f"/sandboxes/{the_id}/snapshots", {})
    copy = await e2b.create(templateID=snapshot["snapshotID"])
    await _pause_and_connect(e2b, the_id, {"memory": False})
    shown = []
    for box_id in (the_id, copy):
        past = await e2b.daemon.ask("GET", f"/v1/sessions/{box_id}/execs", headers=AS_OPERATOR)
        shown.append([one["command"] for one in reversed(past.json)])
    given = ["give the files to the user"] if profile == "dev" else []
    assert shown == [
        ["/bin/sh -c true", "end all processes"],
        ["unpack a snapshot", *given],
    ]


def test_an_image_without_the_mount_keeps_the_workspace():
    old = SandboxAccount(False)
    assert (old.directory(None), old.directory("/home/user/a")) == (None, "/workspace/a")
    assert (old.environment(""), old.user("root")) == ({}, None)
    new = SandboxAccount(True, "user")
    assert (new.directory("a"), new.directory("/workspace/a")) == ("/home/user/a", "/workspace/a")
    assert (new.user(""), new.user("user"), new.user("root")) == ("1000:1000", "1000:1000", None)
    assert (new.environment("root"), json.dumps(new.environment(""))) == (
        {}, '{"HOME": "/home/user", "USER": "user", "LOGNAME": "user"}',
    )  # fmt: skip
