"""What E2B's documentation shows, with its published SDK; prints what was seen as JSON.

Runs in the environment of other implementations' clients. The addresses and the key are in the
environment, as a program for E2B has them.
"""

import hashlib
import json
import os
import threading
import time
import urllib.error
import urllib.request

import e2b
from e2b import (
    CommandExitException,
    FileNotFoundException,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)

BIG = os.urandom(10_000_000)


def commands(box):
    lines = []
    done = box.commands.run(
        "echo out; echo err >&2; pwd; echo $OF_SANDBOX $OF_COMMAND; whoami >/dev/null",
        envs={"OF_COMMAND": "2"},
        on_stdout=lines.append,
        cwd="/home/user",
    )
    seen = {"run": [done.exit_code, done.stdout, done.stderr, "".join(lines) == done.stdout]}
    try:
        box.commands.run("echo before; exit 3")
    except CommandExitException as exc:
        seen["exit"] = [exc.exit_code, exc.stdout]
    seen["long"] = hashlib.sha256(box.commands.run("seq 1 200000").stdout.encode()).hexdigest()

    reader = box.commands.run("cat", background=True, stdin=True)
    box.commands.send_stdin(reader.pid, "typed\n")
    seen["listed"] = [one.pid == reader.pid for one in box.commands.list()]
    box.commands.close_stdin(reader.pid)
    seen["stdin"] = reader.wait().stdout

    sleeper = box.commands.run("sleep 1000", background=True)
    seen["kill"] = [sleeper.kill(), sleeper.kill()]
    try:
        sleeper.wait()
    except CommandExitException as exc:
        seen["killed"] = [exc.exit_code, exc.error]

    again = box.commands.run("read line; echo got $line", background=True, stdin=True)
    again.disconnect()
    connected = box.commands.connect(again.pid)
    box.commands.send_stdin(again.pid, "more\n")
    seen["connect"] = connected.wait().stdout
    try:
        box.commands.run("sleep 1000", timeout=0.3)
    except TimeoutException:
        seen["timeout"] = True
    try:
        box.commands.connect(again.pid)
    except NotFoundException:
        seen["ended"] = True
    return seen


def metadata(box):
    """Metadata of files, which a program inside sees as extended attributes."""
    given = {"author": "ada", "purpose": "upload"}
    made = box.files.write("/home/user/meta/a", "1", metadata=given)
    seen = {"written": made.metadata, "info": box.files.get_info("/home/user/meta/a").metadata}
    raw = box.files.write("/home/user/meta/b", b"2", metadata=given, use_octet_stream=True)
    seen["raw"] = raw.metadata
    box.files.write("/home/user/meta/c", "3")
    seen["list"] = [one.metadata for one in box.files.list("/home/user/meta")]
    inside = "import os; print(os.getxattr('/home/user/meta/a', 'user.e2b.author').decode())"
    seen["inside"] = box.commands.run(f'python3 -c "{inside}"').stdout
    moved = box.files.rename("/home/user/meta/a", "/home/user/meta/d")
    seen["moved"] = moved.metadata
    box.files.write("/home/user/meta/d", "4")
    seen["replaced"] = box.files.get_info("/home/user/meta/d").metadata
    box.files.remove("/home/user/meta")
    return seen


def files(box):
    seen = {}
    box.files.write("/home/user/notes/text.txt", "grüße")
    seen["read"] = box.files.read("/home/user/notes/text.txt")
    seen["by_command"] = box.commands.run("cat /home/user/notes/text.txt").stdout
    box.files.write("big.bin", BIG)
    seen["big"] = bytes(box.files.read("big.bin", format="bytes")) == BIG
    streamed = b"".join(box.files.read("big.bin", format="stream"))
    seen["streamed"] = streamed == BIG
    box.files.write("packed.txt", "packed" * 1000, gzip=True)
    seen["packed"] = box.files.read("packed.txt", gzip=True) == "packed" * 1000
    both = [{"path": "/home/user/a b", "data": "1"}, {"path": "/tmp/c", "data": b"2"}]
    seen["several"] = [one.path for one in box.files.write_files(both)]
    box.commands.run("ln -s /home/user/notes /workspace/link")
    seen["list"] = [[one.name, one.type.value, one.path] for one in box.files.list("/home/user")]
    seen["deep"] = [one.path for one in box.files.list("/home/user", depth=2)]
    info = box.files.get_info("/home/user/notes/text.txt")
    seen["info"] = [info.name, info.size, info.permissions, info.owner]
    seen["exists"] = [box.files.exists("big.bin"), box.files.exists("nothing")]
    seen["rename"] = box.files.rename("/home/user/a b", "/home/user/new/name").path
    box.files.remove("/home/user/new")
    seen["removed"] = box.files.exists("/home/user/new")
    seen["make_dir"] = [box.files.make_dir("d"), box.files.make_dir("d")]
    try:
        box.files.read("nothing")
    except FileNotFoundException:
        seen["missing"] = True
    return seen


def watch(box):
    handle = box.files.watch_dir("d")
    box.files.write("d/one", "1")
    box.commands.run("mv d/one d/two && rm d/two")
    events = [[one.name, one.type.value] for one in handle.get_new_events()]
    handle.stop()
    return events


def pty(box):
    shown = []
    terminal = box.pty.create(PtySize(rows=24, cols=80))
    box.pty.resize(terminal.pid, PtySize(rows=30, cols=100))
    box.pty.send_stdin(terminal.pid, b"stty size; echo $TERM; exit 0\n")
    done = terminal.wait(on_pty=shown.append)
    text = b"".join(shown).decode()
    return [done.exit_code, "30 100" in text, "xterm-256color" in text]


def lists(box):
    def ids(**query):
        pages = Sandbox.list(query=SandboxQuery(**query) if query else None, limit=1)
        found = []
        while pages.has_next:
            found += [one.sandbox_id for one in pages.next_items()]
        return found

    other = Sandbox.create(metadata={"user": "other"})
    seen = {
        "all": ids() == [other.sandbox_id, box.sandbox_id],
        "metadata": ids(metadata={"user": "one two"}) == [box.sandbox_id],
        "paused": ids(state=[SandboxState.PAUSED]),
    }
    seen["kill"] = [other.kill(), other.kill(), Sandbox.kill("sbx_0000000000000000")]
    return seen


def life(box):
    before = box.get_info()
    box.set_timeout(1000)
    after = box.get_info()
    left = (after.end_at - after.started_at).total_seconds()
    seen = {"timeout": left > 900 and after.end_at > before.end_at}
    seen["metadata"] = after.metadata
    box.commands.run("echo kept > /home/user/kept; export X=1")
    seen["pause"] = [box.pause(), box.is_running(), box.get_info().state.value]
    back = Sandbox.connect(box.sandbox_id, timeout=500)
    seen["connect"] = [back.is_running(), back.files.read("/home/user/kept")]
    sample = box.get_metrics()[0]
    seen["metrics"] = [sample.mem_used > 0, sample.mem_total > 0, sample.disk_used > 0]
    return seen


def copies(box):
    """Make snapshots and forks: sandboxes with the same files, each with its own."""
    box.files.write("state", "before")
    (fork,) = box.fork(timeout=60)
    snapshot = box.create_snapshot(name="kept-state")
    box.files.write("state", "after")
    made = Sandbox.create(snapshot.snapshot_id)
    named = Sandbox.create("kept-state")
    fork.files.write("state", "of the fork")
    found = [one.snapshot_id for one in Sandbox.list_snapshots(name="kept-state").next_items()]
    seen = {
        "read": [one.files.read("state") for one in (box, fork, made, named)],
        "listed": found == [snapshot.snapshot_id],
        "names": snapshot.names,
        "delete": [Sandbox.delete_snapshot(snapshot.snapshot_id) for _ in range(2)],
    }
    for one in (fork, made, named):
        one.kill()
    return seen


def pauses(_):
    """Let sandboxes pause at their timeout, and resume by `connect` or by a request."""

    def paused(wakes):
        one = Sandbox.create(timeout=1, lifecycle={"on_timeout": "pause", "auto_resume": wakes})
        deadline = time.monotonic() + 60
        while one.is_running() and time.monotonic() < deadline:
            time.sleep(0.05)
        return one

    one, other = paused(False), paused(True)
    seen = {"states": [box.get_info().state.value for box in (one, other)]}
    try:
        one.commands.run("true")
    except e2b.SandboxException as exc:
        seen["command"] = type(exc).__name__
    one.connect(timeout=100)
    other.set_timeout(100)
    seen["woken"] = other.commands.run("echo up").stdout
    seen["running"] = [box.is_running() for box in (one, other)]
    lifecycle = other.get_info().lifecycle
    seen["lifecycle"] = [lifecycle["on_timeout"], lifecycle["auto_resume"]]
    for box in (one, other):
        box.kill()
    return seen


def urls(box):
    def fetch(url, data=None, **headers):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as found:
                return [found.status, found.read().decode()]
        except urllib.error.HTTPError as exc:
            return [exc.code, json.loads(exc.read())["message"]]

    box.files.write("/home/user/shared", "for all")
    url = box.download_url("/home/user/shared", use_signature_expiration=600)
    seen = {"download": fetch(url), "other": fetch(url.replace("shared", "kept"))[0]}
    seen["expired"] = fetch(box.download_url("/home/user/shared", use_signature_expiration=-5))
    upload = box.upload_url("/home/user/sent", use_signature_expiration=600)
    octets = {"Content-Type": "application/octet-stream"}
    seen["upload"] = fetch(upload, b"sent", **octets)[0]
    seen["sent"] = box.files.read("/home/user/sent")
    seen["read_as_write"] = fetch(url, b"x", **octets)[0]
    return seen


def end(box):
    running = box.commands.run("sleep 1000", background=True)
    threading.Timer(0.1, box.kill).start()
    try:
        running.wait()
    except e2b.SandboxException as exc:
        seen = {"during": type(exc).__name__}
    deadline = time.monotonic() + 60
    while box.is_running() and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        box.commands.run("true")
    except e2b.SandboxException as exc:
        seen["after"] = type(exc).__name__
    try:
        Sandbox.connect(box.sandbox_id)
    except NotFoundException:
        seen["connect"] = True
    try:
        Sandbox.create("no-such-template")
    except e2b.SandboxException as exc:
        seen["template"] = "image" in str(exc)
    return seen


def main():
    box = Sandbox.create(timeout=300, metadata={"user": "one two"}, envs={"OF_SANDBOX": "1"})
    seen = {"running": box.is_running()}
    for part in (commands, metadata, files, watch, pty, lists, life, copies, pauses, urls, end):
        seen[part.__name__] = part(box)
    print(json.dumps(seen))  # noqa: T201


main()
