"""Real programs in sandboxes, and real servers outside: what is allowed works, and nothing else."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sandkasten import Images, Sandbox, run
from sandkasten.errors import BackendUnavailable, UnsupportedByBackend
from sandkasten.model.audit_chain import row_of_line
from sandkasten.model.audit_records import AuditFilter
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest, Info
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.engine.network_control import NetworkControl
from sandkasten_runtime.linux.programs import Programs
from sandkasten_server.daemon.daemon_assembly import open_daemon
from tests import imagekit
from tests.network.conftest import HOSTS, served
from tests.network.name_server import NameServer
from tests.ordinary_user import OrdinaryUser
from tests.patience import PATIENCE_S
from tests.shared_sandbox_cases import few

pytestmark = pytest.mark.root

STORES = ["local", "oci", "gvisor"]
BACKENDS = [*STORES, "docker"]
ON_ONE = pytest.mark.long(reason="`make test` has it on local")


def get(box: Sandbox, url: str, *options: str) -> tuple[int | None, str]:
    done = box.exec(["curl", "-sS", "-m", "10", *options, url])
    return done.exit_code, done.output.strip()


def recorded(data: Path, session_id: str) -> set[tuple[str, str]]:
    """Return the network verdicts of a sandbox in the audit log."""
    lines = [
        row_of_line(line)
        for path in (data / "audit").glob("*.jsonl")
        for line in path.read_bytes().splitlines(keepends=True)
    ]
    wanted = AuditFilter(kind="network", session_id=session_id)
    return {(one.action, one.target) for one in lines if wanted.matches(one)}


@pytest.mark.promise("P75")
@pytest.mark.promise("P86")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sandbox_reaches_what_is_allowed_and_nothing_else(boxed, data, web, echo, backend):
    allow = [f"good.test:{web}", f"good.test:{echo}", f"far.test:{web}", f"mixed.test:{web}"]
    box = boxed(backend=backend, network={"allow": allow})
    assert get(box, f"http://good.test:{web}/") == (0, f"hello good.test:{web}")
    # A server that speaks first.
    talk = f"exec 3<>/dev/tcp/good.test/{echo}; head -1 <&3; echo back >&3; head -1 <&3"
    assert box.exec(["bash", "-c", talk]).output == "READY\nback\n"
    # The operator opened one of its two addresses.
    assert get(box, f"http://mixed.test:{web}/")[0] == 0
    refused = {
        "another name at the same address": f"http://evil.test:{web}/",
        "another port": f"http://good.test:{web + 1}/",
        "a name that leads to a closed address": f"http://far.test:{web}/",
        "an address": f"http://127.0.0.2:{web}/",
        "metadata": "http://169.254.169.254/latest/",
        "private": "http://10.0.0.1/",
        "the usual bridge of Docker": "http://172.17.0.1:2375/",
        "decimal": f"http://2130706433:{web}/",
        "hexadecimal": f"http://0x7f.1:{web}/",
        "mapped": f"http://[::ffff:127.0.0.1]:{web}/",
        "IPv6": "http://[fd00:ec2::254]/",
        "public": "http://1.1.1.1/",
        "a redirect": f"http://good.test:{web}/elsewhere",
        "another host in the request": f"http://good.test:{web}/x",
    }
    for name, url in refused.items():
        more = ("-H", "Host: evil.test") if name == "another host in the request" else ("-L",)
        status, output = get(box, url, *more)
        assert "hello" not in output, name
        assert status != 0 or "may not reach" in output, (name, status, output)
    log = box.network_log()
    assert {one.host for one in log if one.event == "opened" and one.allowed} >= {"good.test"}
    assert {one.host for one in log if one.event == "refused"} >= {"evil.test", "far.test"}
    assert [one.seq for one in log] == sorted({one.seq for one in log})
    status = box.network()
    assert status.opened >= 3
    assert status.refused >= 3
    assert status.bytes_in > 0
    assert f"evil.test:{web}" in status.suggested
    assert "1.1.1.1:80" in status.suggested
    closed = {"169.254.169.254:80", "10.0.0.1:80", f"far.test:{web}"}
    assert not closed & set(status.suggested)
    assert closed <= set(status.not_public)
    the_id = box.id
    box.close()
    verdicts = recorded(data, the_id)
    assert ("network.allow", f"good.test:{web}") in verdicts
    assert ("network.refuse", f"evil.test:{web}") in verdicts


@pytest.mark.parametrize(
    "backend",
    [
        "local",
        *(pytest.param(one, marks=ON_ONE) for one in STORES if one != "local"),
    ],
)
def test_a_sandbox_on_an_image_has_names(boxed, web, tmp_path, backend):
    Images(data_dir=tmp_path / "data").import_archive(imagekit.debian_tar(), name="debian")
    box = boxed(backend=backend, image="debian", network={"allow": [f"good.test:{web}"]})
    code = (
        f"import urllib.request as u; print(u.urlopen('http://good.test:{web}/').read().decode())"
    )
    assert box.exec(["python3", "-c", code]).output.strip() == f"hello good.test:{web}"


@pytest.mark.parametrize("backend", few(BACKENDS))
def test_rules_change_at_once_and_end_open_connections(boxed, web, echo, backend):
    box = boxed(backend=backend, network={"allow": [f"good.test:{echo}"]})
    talk = f"exec 3<>/dev/tcp/good.test/{echo}; head -1 <&3; cat <&3; echo ended"
    process = box.start(["bash", "-c", talk])
    with process.follow() as output:
        assert "READY" in next(iter(output)).text
    box.update(network={"allow": [f"good.test:{web}"]})
    assert process.wait().output.endswith("ended\n")
    assert get(box, f"http://good.test:{web}/")[0] == 0
    assert box.info().network == {"allow": [f"good.test:{web}"]}
    assert get(box, f"http://good.test:{echo}/")[1].startswith("This sandbox may not reach")


PLAIN = b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"
HIDDEN = {
    "after an empty line": [b"\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"],
    "line feeds alone": [b"GET / HTTP/1.1\nHost: evil.test\n\n"],
    "two hosts": [b"GET / HTTP/1.1\r\nHost: evil.test\r\nHost: good.test\r\n\r\n"],
    "in the target": [b"GET http://evil.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n"],
    "another method": [b"PROPFIND / HTTP/1.1\r\nHost: evil.test\r\n\r\n"],
    "after a space": [b" GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"],
    "another space": [b"GET\x0b/\x0bHTTP/1.1\r\nHost: evil.test\r\n\r\n"],
    "small letters": [b"get / HTTP/1.1\r\nHost: evil.test\r\n\r\n"],
    "connect": [b"CONNECT evil.test:80 HTTP/1.1\r\n\r\n"],
    "late": [b"GET / HTTP/1.1\r\n", b"Host: evil.test\r\n\r\n"],
    "late from the start": [b"", b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"],
    "late hello": [bytes([22, 3, 1]), bytes([2, 0, 1, 0, 1, 252, 3, 3])],
    "after much": [b"GET / HTTP/1.1\r\nX: " + b"x" * 40000 + b"\r\nHost: evil.test\r\n\r\n"],
}


def test_a_host_cannot_be_hidden_from_the_rules(boxed, raw):
    """Whatever a lenient server would read, nothing of it reaches the server."""
    box = boxed(network={"allow": [f"good.test:{raw.port}"]})
    code = f"""
import socket, threading, time
def send(parts):
    with socket.create_connection(("good.test", {raw.port}), 10) as made:
        for number, part in enumerate(parts):
            time.sleep(number * 4)
            made.sendall(part)
        made.settimeout(6)
        made.recv(1000)
def quietly(parts):
    try:
        send(parts)
    except OSError:
        pass
all = [threading.Thread(target=quietly, args=(parts,)) for parts in {list(HIDDEN.values())!r}]
[one.start() for one in all]
[one.join() for one in all]
send([{PLAIN!r}])
"""
    done = box.exec(["python3", "-c", code], timeout_seconds=60)
    assert done.exit_code == 0, done
    assert raw.received == [PLAIN]


def test_a_denied_network_is_closed_to_names_too(boxed, web):
    allowed = {"allow": [f"good.test:{web}"]}
    box = boxed(network=allowed)
    assert get(box, f"http://good.test:{web}/")[0] == 0
    box.update(network={**allowed, "deny": ["127.0.0.1"]})
    assert "hello" not in get(box, f"http://good.test:{web}/")[1]
    (refused,) = [one for one in box.network_log() if one.event == "refused"]
    assert (refused.rule, refused.address) == ("deny 127.0.0.1", "127.0.0.1")


@pytest.mark.parametrize("backend", few(BACKENDS))
def test_a_result_names_what_was_refused_while_the_command_ran(boxed, web, backend):
    box = boxed(backend=backend, network={"allow": [f"good.test:{web}", f"far.test:{web}"]})
    assert box.exec(f"curl -sS -m 10 http://good.test:{web}/").refused == ()
    tried = f"for i in 1 2; do curl -sS -m 10 http://evil.test:{web}/ http://far.test:{web}/; done"
    found = box.exec(tried)
    assert [(one.host, one.port) for one in found.refused] == [
        ("evil.test", web),
        ("far.test", web),
    ]
    assert "network.allow" in found.refused[0].hint
    assert "network.reachable" in found.refused[1].hint
    refused = found.as_dict()["network"]["refused"]
    assert [one["host"] for one in refused] == ["evil.test", "far.test"]
    # Also of a command in the background, and not of the next one.
    time.sleep(0.05)
    begun = box.start(["curl", "-sS", "-m", "10", f"http://evil.test:{web}/"])
    assert [one.host for one in begun.wait().refused] == ["evil.test"]
    time.sleep(0.05)
    assert box.exec("true").refused == ()


def test_a_name_without_an_address_is_in_the_log_and_in_the_result(boxed, monkeypatch):
    server = NameServer(lambda name, _: None if name == "gone.test" else [])
    with served(server):
        monkeypatch.setenv("SANDKASTEN_NETWORK_SERVERS", server.address)
        box = boxed(network={"allow": ["gone.test:443", "bare.test", "good.test"]})
        done = box.exec("for name in good gone bare; do getent hosts $name.test; done")
        box.exec(["true"])
    assert [(one.host, one.port, one.rule) for one in done.refused] == [
        ("gone.test", 53, "no such name"),
        ("bare.test", 53, "the name has no address"),
    ]
    assert done.refused[0].hint.startswith("check the spelling")
    log = [(one.event, one.host, one.allowed, one.reason) for one in box.network_log()]
    assert log[0] == ("failed", "gone.test", True, "no such name")
    found = box.network()
    assert (found.failed, found.suggested) == (len(log), ())


def test_a_name_server_that_does_not_answer_is_named(boxed):
    box = boxed(network={"allow": ["gone.test"]})
    (found,) = box.exec("getent hosts gone.test").refused
    assert (found.host, found.rule) == ("gone.test", "no name server answered")
    assert "network.servers" in found.hint


@pytest.mark.parametrize("backend", few(BACKENDS))
def test_rules_can_be_closed_and_opened_again(boxed, web, backend):
    box = boxed(backend=backend, network={"allow": [f"good.test:{web}"]})
    assert get(box, f"http://good.test:{web}/")[0] == 0
    box.update(network="none")
    tried = box.exec(["curl", "-sS", "-m", "10", f"http://good.test:{web}/"])
    assert "hello" not in tried.output
    assert [one.host for one in tried.refused] == ["good.test"]
    closed = box.network()
    assert (closed.network, closed.opened, closed.refused) == ("none", 1, 1)
    box.update(network={"allow": [f"good.test:{web}"]})
    assert get(box, f"http://good.test:{web}/") == (0, f"hello good.test:{web}")


@pytest.mark.promise("P75")
def test_a_default_network_is_what_the_policy_permits(boxed, web, monkeypatch):
    monkeypatch.setenv("STATION_SANDBOX_ALLOW_NETWORK_DEFAULT", "true")
    monkeypatch.setenv("SANDKASTEN_POLICY_NETWORK", f"good.test:{web}")
    box = boxed(backend="local")
    assert get(box, f"http://good.test:{web}/") == (0, f"hello good.test:{web}")
    assert "hello" not in get(box, f"http://evil.test:{web}/")[1]
    closed = boxed(backend="local", network="none")
    assert get(closed, f"http://good.test:{web}/")[0] != 0


def test_a_command_that_failed_without_a_network_says_that_there_is_none(boxed):
    box = boxed()
    failed = box.exec(["curl", "-sS", "-m", "10", "http://good.test/"])
    assert failed.exit_code
    assert failed.network_hint.startswith("the sandbox was created without a network")
    assert failed.as_dict()["network"] == {
        "refused": [],
        "suggested": [],
        "hint": failed.network_hint,
    }
    # The innocent twins.
    assert box.exec("echo Could not resolve host").network_hint == ""
    assert box.exec(["false"]).as_dict()["network"] is None


def test_a_network_cannot_be_added_later(boxed):
    box = boxed()
    with pytest.raises(UnsupportedByBackend):
        box.update(network="full")
    assert box.network().network == "none"
    assert box.network_log() == []


def test_a_dry_run_allows_and_reports(boxed, web):
    box = boxed(network={"allow": ["other.test"], "dry_run": True})
    assert get(box, f"http://good.test:{web}/")[0] == 0
    opened = [one for one in box.network_log() if one.event == "opened"]
    assert [(one.host, one.allowed, one.rule) for one in opened] == [
        ("good.test", False, "default")
    ]


def test_a_403_says_what_the_result_of_the_command_says(boxed, web):
    box = boxed(network={"allow": ["inner.test", "10.0.0.1"], "deny": ["denied.test"]})
    for host in ("other.test", "denied.test", "10.0.0.1"):
        done = box.exec(["curl", "-sS", "-m", "10", f"http://{host}:{web}/"])
        # The one before it may have been refused in the same millisecond.
        [refusal] = [one for one in done.refused if one.host == host]
        reason = refusal.text.partition(": ")[2]
        told, hint = done.output.splitlines()
        assert told == f"This sandbox may not reach {host}:{web} ({reason})."
        assert refusal.hint in hint[0].lower() + hint[1:]


def test_a_one_shot_names_what_was_refused_and_the_rules_of_a_dry_run(boxed, data, web):
    code = f"curl -sS -m 10 http://good.test:{web}/ http://far.test:{web}/"
    options: dict[str, Any] = {"runtime": "bash", "data_dir": str(data)}
    found = run(code, network={"allow": ["other.test"]}, **options)
    assert [one.host for one in found.refused] == ["good.test", "far.test"]
    assert found.refused[0].allow == f"good.test:{web}"
    assert found.as_dict()["network"]["refused"][0]["rule"] == "default"
    found = run(code, network={"dry_run": True}, **options)
    assert [one.host for one in found.refused] == ["far.test"]
    assert found.suggested == (f"good.test:{web}",)


def test_a_dry_run_still_keeps_closed_addresses_closed(boxed, web):
    box = boxed(network={"allow": ["other.test"], "dry_run": True})
    assert "may not reach" in get(box, f"http://far.test:{web}/")[1]


def _egress_of(box: Sandbox, tmp_path: Path) -> int:
    """Return its process id; while it starts, its descriptors change under the eyes."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    name = (entry / "comm").read_text().strip()
                    links = [os.readlink(one) for one in (entry / "fd").iterdir()]
                except OSError:
                    continue
                if name.startswith("sandkasten-egr") and any(box.id in link for link in links):
                    return int(entry.name)
        time.sleep(0.01)
    raise AssertionError("the sandbox has no egress process")


@pytest.mark.parametrize("backend", few(BACKENDS))
def test_the_egress_is_not_root_and_ends_with_its_sandbox(boxed, tmp_path, backend):
    box = boxed(backend=backend, network="full")
    pid = _egress_of(box, tmp_path)
    # It answers nothing before it has given up its privileges, and a busy machine starts it late.
    assert get(box, "http://good.test:1/")[0] != 0
    status = Path(f"/proc/{pid}/status").read_text()
    assert "Uid:\t0\t" not in status
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status
    box.close()
    end = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end
        time.sleep(0.01)


def _with_egress(monkeypatch: pytest.MonkeyPatch, folder: Path, mode: int) -> None:
    """Use an egress program with these permissions in a folder that only root may search."""
    shipped = Programs.found(None, None)
    folder.mkdir(mode=0o700)
    own = folder / "sandkasten-egress"
    shutil.copyfile(shipped.egress, own)
    own.chmod(mode)
    programs = Programs(shipped.runner, shipped.launcher, own)
    monkeypatch.setattr(Programs, "found", lambda runner, launcher: programs)


@pytest.mark.parametrize("backend", STORES)
def test_the_egress_of_an_installation_in_a_private_folder_runs(
    boxed, web, tmp_path, monkeypatch, backend
):
    _with_egress(monkeypatch, tmp_path / "private", 0o755)
    box = boxed(backend=backend, network={"allow": [f"good.test:{web}"]})
    assert get(box, f"http://good.test:{web}/") == (0, f"hello good.test:{web}")
    assert _egress_of(box, tmp_path)


@pytest.mark.parametrize("backend", STORES)
def test_without_a_program_that_can_be_run_there_is_no_sandbox(
    boxed, tmp_path, monkeypatch, backend
):
    _with_egress(monkeypatch, tmp_path / "private", 0o644)
    with pytest.raises(BackendUnavailable) as refused:
        boxed(backend=backend, network="full")
    assert refused.value.details["step"] == "network"
    assert refused.value.details["errno"] == errno.EACCES


@pytest.mark.parametrize(
    "backend", ["local", *(pytest.param(b, marks=ON_ONE) for b in BACKENDS[1:])]
)
def test_without_its_egress_a_sandbox_reaches_nothing(boxed, web, tmp_path, backend):
    box = boxed(backend=backend, network={"allow": [f"good.test:{web}"]})
    assert get(box, f"http://good.test:{web}/")[0] == 0
    os.kill(_egress_of(box, tmp_path), signal.SIGKILL)
    status, output = get(box, f"http://good.test:{web}/")
    assert status != 0
    assert "hello" not in output


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_but_tcp_and_the_resolver_answers(boxed, backend):
    """In the full network too: the egress has no other door, and datagrams lead nowhere."""
    box = boxed(backend=backend, network="full")
    code = """
import socket
for at in (("198.18.0.1", 65053), ("198.18.0.1", 53), ("127.0.0.1", 65053), ("198.18.0.2", 80)):
    try:
        with socket.create_connection(at, 5) as made:
            made.settimeout(5)
            made.sendall(b"{}\\n")
            print(at, "answered", made.recv(100)[:20])
    except OSError:
        pass
for at in (("1.1.1.1", 53), ("198.18.0.1", 54), ("10.0.0.1", 123)):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sent:
        sent.settimeout(0.5)
        try:
            sent.sendto(b"x" * 40, at)
            print(at, "answered", sent.recvfrom(100))
        except OSError:
            pass
for kind in (socket.SOCK_RAW, socket.SOCK_PACKET if hasattr(socket, "SOCK_PACKET") else 10):
    try:
        socket.socket(socket.AF_INET, kind, socket.IPPROTO_TCP)
        print("raw socket", kind)
    except OSError:
        pass
"""
    done = box.exec(["python3", "-c", code])
    assert (done.exit_code, done.output) == (0, ""), done


@pytest.mark.long(reason="`make test` has it with secrets")
def test_an_ordinary_user_has_the_same_network(web):
    script = (
        "from sandkasten import Sandbox\n"
        f"with Sandbox(network={{'allow': ['good.test:{web}']}}) as box:\n"
        f"    print(box.exec('curl -sS -m 10 http://good.test:{web}/').output.strip())\n"
        f"    print(box.exec('curl -sS -m 10 http://evil.test:{web}/').output.split()[0])\n"
    )
    env = {
        "SANDKASTEN_NETWORK_REACHABLE": "127.0.0.1/32",
        "SANDKASTEN_NETWORK_HOSTS": "good.test=127.0.0.1,evil.test=127.0.0.1",
    }
    with OrdinaryUser() as user:
        done = user.python("-c", script, env=env, timeout_s=PATIENCE_S)
    assert done.stdout.split("\n")[:2] == [f"hello good.test:{web}", "This"], done.stderr


@pytest.mark.parametrize("backend", ["local", "docker"])
def test_a_connection_survives_the_end_of_its_creator(boxed, web, echo, data, backend):
    """The process that made the sandbox is killed; another one goes on with it."""
    script = (
        "import sys, time\n"
        "from sandkasten import Sandbox\n"
        f"network = {{'allow': ['good.test:{echo}']}}\n"
        f"box = Sandbox(backend={backend!r}, network=network, data_dir={str(data)!r})\n"
        f"box.exec('exec 3<>/dev/tcp/good.test/{echo}; head -1 <&3')\n"
        "print(box.id, flush=True)\n"
        "time.sleep(1000)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as made:
        assert made.stdout is not None
        the_id = made.stdout.readline().strip()
        made.kill()
    box = Sandbox.attach(the_id, data_dir=str(data))
    try:
        assert box.exec("echo still here >&3; head -1 <&3").output == "still here\n"
        box.update(network={"allow": [f"good.test:{web}"]})
        assert get(box, f"http://good.test:{web}/")[0] == 0
        assert box.exec("cat <&3 2>/dev/null; echo ended").output == "ended\n"
    finally:
        box.close()


def test_the_command_line_creates_shows_and_changes_a_network(web, tmp_path):
    env = {
        **os.environ,
        "SANDKASTEN_DATA_DIR": str(tmp_path / "data"),
        "SANDKASTEN_NETWORK_REACHABLE": "127.0.0.1/32",
        "SANDKASTEN_NETWORK_HOSTS": HOSTS,
    }

    def spoken(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sandkasten_server.cli", *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done

    def cli(*words: str) -> str:
        return spoken(*words).stdout.strip()

    bare = cli("create")
    for words in (("net", "log", bare), ("net", "suggest", bare)):
        assert "note: the sandbox has no network" in spoken(*words).stderr
    cli("rm", bare)
    made = spoken("create", "--allow", f"good.test:{web}", "--allow", "10.0.0.1")
    the_id = made.stdout.strip()
    try:
        assert "warning: 10.0.0.1 will not be reached: only the operator opens" in made.stderr
        assert made.stderr.count("warning") == 1
        assert cli("exec", the_id, f"curl -sS http://good.test:{web}/").startswith("hello")
        assert "may not reach" in cli("exec", the_id, f"curl -sS http://evil.test:{web}/")
        assert "may not reach" in cli("exec", the_id, "curl -sS http://169.254.169.254/")
        told = spoken("net", "suggest", the_id)
        assert told.stdout.split() == [f"evil.test:{web}", f"good.test:{web}"]
        assert "no network" not in told.stderr
        assert "only the operator can open 169.254.169.254:80: network.reachable" in told.stderr
        log = json.loads(cli("net", "log", the_id, "--json"))
        assert [one["event"] for one in log] == ["opened", "closed", "refused", "refused"]
        assert f"good.test:{web}" in cli("net", "show", the_id)
        assert {"2 rules", "network received"} <= set(re.split("  +|\n", cli("stats", the_id)))
        usage = json.loads(cli("stats", "--json", the_id))["network"]
        assert (usage["mode"], usage["rules"], usage["connections"]) == ("rules", 2, 0)
        assert usage["rx_bytes"] > 0
        assert json.loads(cli("inspect", the_id))["network"] == {
            "allow": [f"good.test:{web}", "10.0.0.1"]
        }
        cli("update", the_id, "--allow", f"evil.test:{web}")
        assert cli("exec", the_id, f"curl -sS http://evil.test:{web}/").startswith("hello")
        cli("update", the_id, "--network", "full", "--deny", f"evil.test:{web}")
        assert "may not reach" in cli("exec", the_id, f"curl -sS http://evil.test:{web}/")
        assert cli("exec", the_id, f"curl -sS http://good.test:{web}/").startswith("hello")
    finally:
        cli("rm", the_id)


async def test_a_daemon_shows_the_network_and_holds_keys_to_the_setting(web, tmp_path):
    settings = load(
        {
            "data_dir": str(tmp_path / "data"),
            "listen": "127.0.0.1:0",
            "api_key": "the-key-of-the-operator",
            "network.reachable": "127.0.0.1/32",
            "network.hosts": HOSTS,
        },
        {},
        tmp_path,
    )
    rules = {"network": {"allow": [f"good.test:{web}"]}}
    async with open_daemon(settings) as daemon, aiohttp.ClientSession() as session:

        async def ask(method: str, path: str, key: str, body: object = None) -> tuple[int, Any]:
            headers = {"Authorization": f"Bearer {key}"}
            url = daemon.http.url + path
            async with session.request(method, url, json=body, headers=headers) as answer:
                return answer.status, await answer.json()

        operator = "the-key-of-the-operator"
        _, made = await ask("POST", "/v1/keys", operator, {"tenant": "acme"})
        status, refused = await ask("POST", "/v1/sessions", made["key"], rules)
        assert (status, refused["code"], refused["details"]["rule"]) == (
            403,
            "FORBIDDEN",
            "policy.network",
        )
        status, box = await ask("POST", "/v1/sessions", operator, rules)
        assert (status, box["network"]) == (201, rules["network"])
        path = f"/v1/sessions/{box['id']}"
        command = {"cmd": f"curl -sS http://evil.test:{web}/; curl -sS http://good.test:{web}/"}
        await ask("POST", f"{path}/exec", operator, command)
        _, shown = await ask("GET", f"{path}/network", operator)
        assert (shown["network"], shown["refused"], shown["opened"]) == (rules["network"], 1, 1)
        log: list[dict[str, Any]] = []
        deadline = time.monotonic() + PATIENCE_S
        # The end of a connection is recorded a moment after the command has ended.
        while len(log) < 2 and time.monotonic() < deadline:
            _, log = await ask("GET", f"{path}/network/log?since_seq=1", operator)
        assert [one["seq"] for one in log] == [2, 3]
        url = f"{daemon.http.url}{path}/network/log?follow=true"
        async with session.get(url, headers={"Authorization": f"Bearer {operator}"}) as events:
            first = await events.content.readuntil(b"\n\n")
            assert b"event: attempt" in first
            assert b"evil.test" in first
        first_count = await _network_metrics(session, daemon.http.url, operator)
        assert first_count == {"allowed": 1, "refused": 1, "failed": 0, "would_refuse": 0}
        # What is counted between two looks is not lost with the sandbox.
        await ask("POST", f"{path}/exec", operator, command)
        await ask("DELETE", path, operator)
        last_count = await _network_metrics(session, daemon.http.url, operator)
        assert last_count == {"allowed": 2, "refused": 2, "failed": 0, "would_refuse": 0}


async def _network_metrics(session: aiohttp.ClientSession, url: str, key: str) -> dict[str, int]:
    headers = {"Authorization": f"Bearer {key}"}
    async with session.get(f"{url}/metrics", headers=headers) as answer:
        text = await answer.text()
    assert 'sandkasten_network_bytes_total{direction="in"}' in text
    head = 'sandkasten_network_connections_total{verdict="'
    lines = [line.removeprefix(head) for line in text.splitlines() if line.startswith(head)]
    return {line.partition('"')[0]: int(float(line.split()[-1])) for line in lines}


async def test_a_changed_setting_reaches_living_sandboxes_after_a_restart(
    web, tmp_path, monkeypatch
):
    """Also a command that is started while the setting is being applied."""
    adopt = NetworkControl.adopt

    async def slow(control, record):
        await control._handles.get(record.id)
        await asyncio.sleep(0.5)
        await adopt(control, record)

    monkeypatch.setattr(NetworkControl, "adopt", slow)
    flags = {"data_dir": str(tmp_path / "data"), "listen": "127.0.0.1:0", "network.hosts": HOSTS}
    box = ""
    for reachable, answer in (("", "may not reach"), ("127.0.0.1/32", "hello"), ("", "may not")):
        more = {"network.reachable": reachable} if reachable else {}
        async with open_daemon(load({**flags, **more}, {}, tmp_path)) as daemon:
            engine = daemon.engine
            if not box:
                options = SandboxOptions(network={"allow": [f"good.test:{web}"]})
                box = (await engine.create(CreateRequest(options))).id
            # By then recovery has opened it.
            await asyncio.sleep(0.1)
            got = await engine.exec(box, ExecRequest(f"curl -sS http://good.test:{web}/"))
            assert answer.encode() in got.output
    engine = await open_engine(load(flags, {}, tmp_path))
    await engine.destroy(box)
    await engine.aclose()


@pytest.mark.promise("P94")
async def test_a_sandbox_of_the_warm_pool_reaches_what_its_own_request_allows(web, tmp_path):
    flags = {
        "data_dir": str(tmp_path / "data"),
        "network.hosts": HOSTS,
        "network.reachable": "127.0.0.1/32",
    }
    engine = await open_engine(load(flags, {}, tmp_path))

    async def create(host: str) -> Info:
        options = SandboxOptions(network={"allow": [f"{host}:{web}"]})
        return await engine.create(CreateRequest(options))

    try:
        # The kind is the same, so what is made ready for these requests is claimed for another.
        for _ in range(2):
            await engine.destroy((await create("evil.test")).id)
        async with asyncio.timeout(PATIENCE_S):
            while (info := await create("good.test")).acquire_source != "pool":
                await engine.destroy(info.id)
        for host, answer in (("good.test", b"hello good.test"), ("evil.test", b"may not reach")):
            got = await engine.exec(info.id, ExecRequest(f"curl -sS http://{host}:{web}/"))
            assert answer in got.output
        assert info.network == {"allow": [f"good.test:{web}"]}
    finally:
        for one in await engine.list():
            await engine.destroy(one.id)
        await engine.aclose()
