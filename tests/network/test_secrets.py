"""Secrets: real programs in sandboxes use them at a real API and never have them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten import Images, Sandbox, Secrets
from sandkasten.errors import InvalidRequest, NotFound, UnsupportedByBackend
from tests import imagekit
from tests.engines import lent, seen
from tests.network.conftest import Recorder, served
from tests.network.test_sandbox_network import _egress_of
from tests.network.tls_api import ATTACKS, BASIC, PART, VALUE, Api
from tests.ordinary_user import OrdinaryUser
from tests.patience import PATIENCE_S
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.root
BACKENDS = ["local", "oci", "gvisor", "docker"]
# One whose launcher starts the egress process, and one whose container is entered later.
BOTH = ["local", "docker"]
BEARER = "Authorization: Bearer {value}"


@pytest.fixture
def secret(data) -> Callable[..., Any]:
    def store(name: str = "TOKEN", **options: Any) -> Any:
        options = {"header": BEARER, **options} if len(options) == 0 else options
        options.setdefault("hosts", "good.test")
        return Secrets(data_dir=str(data)).set(name, VALUE, **options)

    return store


@pytest.fixture(scope="module")
def kept() -> Iterator[list[Sandbox]]:
    """Return the sandbox that all cases on Docker share, once it exists."""
    made: list[Sandbox] = []
    yield made
    for one in made:
        one.close()


@pytest.fixture
def inspected(boxed, data, kept, secret) -> Iterator[Callable[..., Sandbox]]:
    """Return what creates a sandbox with a network; on Docker, what changes the shared one."""
    opened: list[Sandbox] = []

    def create(backend: str, network: dict[str, Any]) -> Sandbox:
        if backend != "docker":
            return boxed(backend=backend, network=network)
        if not kept:
            secret()
            first = {"allow": ["*"], "secrets": ["TOKEN", "BASIC", "QUERY", "BODY"]}
            secret("BASIC", basic="me", hosts=["good.test"])
            for name, place in (("QUERY", {"query": "key"}), ("BODY", {"body": True})):
                secret(name, **place, hosts=["evil.test"])
            kept.append(Sandbox(data_dir=str(data), backend=backend, network=first))
        opened.append(Sandbox.attach(kept[0].id, data_dir=str(data)))
        opened[-1].update(network=network)
        return opened[-1]

    yield create
    for one in opened:
        one.__exit__(None, None, None)


def last_seq(box: Sandbox) -> int:
    return max((one.seq for one in box.network_log()), default=0)


def curl(box: Sandbox, *words: str) -> str:
    return box.exec(["curl", "-sS", "-m", "10", *words]).output


def files_below(directory: Path) -> dict[str, bytes]:
    found = {}
    for path in directory.rglob("*"):
        if path.is_file() and path.name != "volume" and path.stat().st_size < 10 << 20:
            found[str(path)] = path.read_bytes()
    return found


@pytest.mark.promise("P77")
@pytest.mark.parametrize("backend", few(BACKENDS))
def test_a_program_uses_a_secret_that_the_sandbox_does_not_have(
    inspected, api, secret, data, tmp_path, backend
):
    stored = secret()
    network = {"allow": ["good.test", "evil.test"], "secrets": ["TOKEN"]}
    box = inspected(backend, network)
    assert curl(box, f"https://good.test:{api.port}/user") == "hello\n"
    code = (
        f"import urllib.request as u; print(u.urlopen('https://good.test:{api.port}/user').read())"
    )
    assert box.exec(["python3", "-c", code]).output == "b'hello\\n'\n"
    # Inside there is a placeholder, and what it is worth nowhere.
    assert box.exec("echo $TOKEN").output.strip() == stored.placeholder
    assert VALUE not in box.exec("env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null").output
    # What the server repeats is hidden, however it is split.
    for path in ("echo", "split"):
        told = curl(box, "-i", f"https://good.test:{api.port}/{path}")
        assert "*" * len(VALUE) in told, told
        assert VALUE not in told
    assert "cannot be searched" in curl(box, f"https://good.test:{api.port}/gzip")
    # The length of a compressed answer says something about what is in it.
    assert "HTTP/1.1 502 Bad Gateway" in curl(box, "-I", f"https://good.test:{api.port}/gzip")
    # Another host gets nothing, by itself or by a redirect.
    assert curl(box, f"https://evil.test:{api.port}/user") == "who are you\n"
    assert '"value": ""' in curl(box, "-L", f"https://good.test:{api.port}/away")
    assert all(VALUE not in str(one) for one in api.sent("evil.test"))
    assert box.info().network == network
    log = box.network_log()
    assert {(one.method, one.path) for one in log if one.event == "request"} >= {
        ("GET", "/user"),
        ("GET", "/split"),
    }
    assert VALUE not in str(log)
    # Neither on disk nor where other processes look.
    for name, content in files_below(data).items():
        assert VALUE.encode() not in content, name
        assert json.dumps(VALUE).encode() not in content, name
    pid = _egress_of(box, tmp_path)
    for name in ("environ", "cmdline"):
        assert VALUE.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    assert "Max core file size        0" in Path(f"/proc/{pid}/limits").read_text()
    if backend == "docker":
        told = seen.told(lent.engine("local"), box.id)
        assert stored.placeholder in told
        assert PART not in told


@pytest.mark.parametrize("backend", few(BOTH))
def test_each_place_of_a_secret(inspected, api, secret, backend):
    secret("BASIC", basic="me", hosts=["good.test"])
    secret("QUERY", query="key", hosts=["evil.test"])
    secret("BODY", body=True, hosts=["evil.test"])
    box = inspected(backend, {"allow": ["*"], "secrets": ["BASIC", "QUERY", "BODY"]})
    told = curl(box, "-H", "Authorization: Basic mine", f"https://good.test:{api.port}/x")
    assert api.seen[-1]["headers"]["Authorization"] == BASIC
    assert BASIC.split()[1] not in told
    told = curl(box, f"https://evil.test:{api.port}/x?a=b&key=mine")
    assert api.seen[-1]["path"] == "/x?a=b&key=s3cr%3Dt%22Value-0123456789"
    assert "s3cr" not in told
    post = f'curl -sS https://evil.test:{api.port}/x -H "$KIND" -d "$DATA"'
    for kind, data, sent in (
        ("application/json", '{"token": "%s"}', json.dumps({"token": VALUE})),
        ("application/x-www-form-urlencoded", "t=%s", "t=s3cr%3Dt%22Value-0123456789"),
    ):
        holder = box.exec("echo $BODY").output.strip()
        env = {"KIND": f"Content-Type: {kind}", "DATA": data % holder}
        told = box.exec(["sh", "-c", post], env=env).output
        assert api.seen[-1]["body"] == sent
        assert "s3cr" not in told
    # How the host reads a body must be clear, or the value could come back as another text.
    for kind, data, why in (
        ("application/x-www-form-urlencoded", "t=%%%s", "an escape goes on in the placeholder"),
        ("application/json; charset=utf-16", '"%s"', "its charset is not UTF-8"),
        ("x/y", "%s", "its Content-Type is not JSON, a form or plain text"),
    ):
        before = len(api.seen)
        env = {"KIND": f"Content-Type: {kind}", "DATA": data % holder}
        told = box.exec(["sh", "-c", post], env=env).output
        assert told == f"Secret BODY is not put into the body of this request: {why}.\n"
        assert len(api.seen) == before
        assert f"secret in a body: {why}" in [one.rule for one in box.network_log()]
    # Chunked, and larger than what is searched.
    large = "head -c 3000000 /dev/zero | tr '\\0' x > /tmp/large; "
    chunked = "-H 'Transfer-Encoding: chunked' -H 'Content-Type: text/plain' --data-binary"
    box.exec(f'echo "$BODY" | curl -sS {chunked} @- https://evil.test:{api.port}/x')
    assert api.seen[-1]["body"] == VALUE + "\n"
    box.exec(f"{large} curl -sS {chunked} @/tmp/large https://evil.test:{api.port}/x")
    assert len(api.seen[-1]["body"]) == 3_000_000


@pytest.mark.long(reason="`make test` has the programs of test_inspected_programs.py")
def test_git_pip_and_node_work_through_inspection(boxed, api, secret, tmp_path):
    secret(basic="me")
    work = tmp_path / "work"
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@y", "-C", str(work)]
    subprocess.run(["git", "init", "-q", "-b", "main", str(work)], check=True)
    (work / "file").write_text("content\n")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    subprocess.run(
        ["git", "clone", "-q", "--bare", str(work), str(tmp_path / "repo.git")], check=True
    )
    subprocess.run(
        ["git", "-C", str(tmp_path / "repo.git"), "config", "http.receivepack", "true"], check=True
    )
    box = boxed(network={"allow": ["good.test"], "secrets": ["TOKEN"], "inspect": True})
    url = f"https://good.test:{api.port}"
    done = box.exec(
        f"git clone -q {url}/repo.git && cd repo && cat file && echo more > file &&"
        " git -c user.name=x -c user.email=x@y commit -qam two && git push -q && git log --oneline"
    )
    assert done.exit_code == 0, done
    log = subprocess.run(
        ["git", "-C", str(tmp_path / "repo.git"), "log", "--format=%s"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert log.stdout == "two\none\n"
    done = box.exec(
        f"cd /tmp && python3 -m pip install -q -t . --index-url {url}/simple/ hidden &&"
        " python3 -c 'import hidden; print(hidden.found)'"
    )
    assert done.output.endswith("True\n"), done
    code = f"require('https').get('{url}/x', r => console.log(r.resume().statusCode))"
    assert box.exec(["node", "-e", code]).output == "200\n"


def test_an_image_trusts_the_authority(boxed, api, secret, tmp_path):
    secret()
    Images(data_dir=tmp_path / "data").import_archive(imagekit.debian_tar(), name="debian")
    box = boxed(image="debian", network={"allow": ["good.test"], "secrets": ["TOKEN"]})
    code = (
        f"import urllib.request as u; print(u.urlopen('https://good.test:{api.port}/user').read())"
    )
    assert box.exec(["python3", "-c", code]).output == "b'hello\\n'\n"


@pytest.mark.parametrize("backend", few(BOTH))
def test_what_could_be_read_in_two_ways_reaches_no_server(inspected, api, secret, backend):
    secret()
    box = inspected(backend, {"allow": ["good.test", "evil.test"], "secrets": ["TOKEN"]})
    before = last_seq(box)
    code = f"""
import socket, ssl
trusting = ssl.create_default_context()
for name, data in {ATTACKS!r}.items():
    with socket.create_connection(("good.test", {api.port}), 10) as made:
        with trusting.wrap_socket(made, server_hostname="good.test") as made:
            made.sendall(data)
            got = b""
            try:
                while piece := made.recv(65536):
                    got += piece
            except OSError:
                pass
            print(name, b"400 Bad Request" in got, got.count(b"HTTP/1.1 200"))
"""
    done = box.exec(["python3", "-c", code])
    later = ("a later request", "after a body")
    expected = [f"{name} True {int(name in later)}" for name in ATTACKS]
    assert done.output.splitlines() == expected, done
    assert [one["path"] for one in api.seen] == ["/fine", "/fine"]
    refused = [one for one in box.network_log(since_seq=before) if one.event == "refused"]
    assert len(refused) == len(ATTACKS)


def test_the_name_in_the_hello_is_that_of_the_connection(boxed, api, secret):
    """Whoever dials one host and greets another gets neither the secret nor an answer."""
    secret()
    network = {"allow": ["good.test", "evil.test"], "secrets": ["TOKEN"]}
    box = boxed(network=network)
    for dialled, greeted in (("evil.test", "good.test"), ("good.test", "evil.test")):
        where = f"{greeted}:{api.port}:{dialled}:{api.port}"
        done = box.exec(f"curl -sS -k -m 10 --connect-to {where} https://{greeted}:{api.port}/user")
        assert done.exit_code != 0
    # No name at all, and a server whose certificate is not valid.
    assert box.exec(f"openssl s_client -noservername good.test:{api.port} </dev/null").exit_code
    assert api.seen == []
    rules = {one.rule for one in box.network_log() if one.event == "refused"}
    assert rules >= {"the client names another host", "TLS without a server name"}


def test_a_server_with_another_certificate_gets_no_secret(boxed, api, secret, monkeypatch):
    monkeypatch.delenv("SANDKASTEN_NETWORK_CA_FILES")
    secret()
    box = boxed(network={"allow": ["good.test"], "secrets": ["TOKEN"]})
    assert "cannot be used over TLS" in curl(box, f"https://good.test:{api.port}/user")
    assert api.seen == []


@pytest.mark.parametrize("backend", BOTH)
def test_a_secret_is_not_sent_without_tls(inspected, api, secret, backend):
    plain = Api(None)
    stored = secret()
    box = inspected(backend, {"allow": ["good.test"], "secrets": ["TOKEN"]})
    with served(plain):
        url = f"http://good.test:{plain.port}/echo"
        for words in (("-H", f"X: {stored.placeholder}"), ("-u", f"me:{stored.placeholder}")):
            told = curl(box, *words, url)
            assert told == "Secret TOKEN is sent only over TLS. Use https://good.test.\n"
        assert plain.seen == []
        assert '"value": ""' in curl(box, url)
    assert "secret without TLS" in {one.rule for one in box.network_log()}


@pytest.mark.parametrize("backend", few(BOTH))
def test_rules_for_requests_decide_about_each_of_them(inspected, api, monkeypatch, backend):
    monkeypatch.setenv("SANDKASTEN_NETWORK_UNINSPECTED", "pinned.test")
    port = api.port
    allow = [f"GET good.test:{port}/repos/*", f"good.test:{port}/open", f"evil.test:{port}"]
    deny = ["DELETE evil.test"]
    box = inspected(backend, {"allow": allow, "deny": deny, "inspect": True})
    before = last_seq(box)
    good, evil = f"https://good.test:{port}", f"https://evil.test:{port}"
    allowed = [
        (f"{good}/repos/x?y",),
        ("-X", "PUT", f"{good}/open"),
        ("-X", "PUT", f"{evil}/any"),
    ]
    for words in allowed:
        assert '"path"' in curl(box, *words), words
    refused = [
        ("-X", "POST", f"{good}/repos/x"),
        (f"{good}/open/x",),
        ("--path-as-is", f"{good}/repos/../user"),
        (f"{good}/repos/%2e%2e/user",),
        (f"{good}/",),
        ("-X", "DELETE", f"{evil}/any"),
        ("-H", "X-HTTP-Method-Override: DELETE", f"{good}/repos/x"),
        ("-H", "X_Original_URL: /user", f"{good}/repos/x"),
    ]
    for words in refused:
        told = curl(box, *words)
        assert told.startswith("This sandbox may not send"), (words, told)
    assert len(api.seen) == len(allowed)
    # What cannot be read is not opened by a rule for requests.
    done = box.exec(f"bash -c 'exec 3<>/dev/tcp/good.test/{port}; echo SSH-2.0-x >&3; cat <&3'")
    assert "may not" not in done.output
    log = box.network_log(since_seq=before)
    found = [one for one in log if one.event == "refused" and one.method]
    assert [(one.method, one.path) for one in found][:2] == [
        ("POST", "/repos/x"),
        ("GET", "/open/x"),
    ]
    with pytest.raises(InvalidRequest, match="requires inspect"):
        box.update(network={"allow": ["GET good.test/x"]})


def test_an_excluded_host_is_not_inspected(boxed, api, certificates, monkeypatch):
    monkeypatch.setenv("SANDKASTEN_NETWORK_UNINSPECTED", "evil.test")
    box = boxed(network={"allow": ["good.test", "evil.test"], "inspect": True})
    show = "openssl s_client -connect {0}:{1} -servername {0} </dev/null 2>/dev/null | grep issuer"
    issuers = [box.exec(show.format(name, api.port)).output for name in ("good.test", "evil.test")]
    assert "Sandkasten" in issuers[0]
    assert "tests" in issuers[1]


@pytest.mark.parametrize("backend", few(BOTH))
def test_a_change_reaches_a_living_sandbox(inspected, boxed, api, secret, data, backend):
    stored = secret()
    network = {"allow": ["good.test"], "secrets": ["TOKEN"]}
    box = inspected(backend, network)
    url = f"https://good.test:{api.port}/user"
    Secrets(data_dir=str(data)).set("TOKEN", "another-value", hosts="good.test", header=BEARER)
    assert curl(box, url) == "hello\n"
    box.update(network=network)
    assert curl(box, url) == "who are you\n"
    assert secret().placeholder == stored.placeholder
    # Another process, as after a restart of the daemon.
    code = f"from sandkasten import Sandbox; Sandbox.attach({box.id!r}).update(network={network!r})"
    env = {**os.environ, "SANDKASTEN_DATA_DIR": str(data)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    assert curl(box, url) == "hello\n"
    box.update(network={"allow": ["good.test"]})
    assert "who are you" in box.exec(["curl", "-sSk", "-m", "10", url]).output
    bare = boxed(backend=backend, network={"allow": ["good.test"]})
    with pytest.raises(UnsupportedByBackend, match="without secrets"):
        bare.update(network=network)


def test_requests_for_secrets_that_make_no_sense_are_refused(boxed, secret):
    secret()
    with pytest.raises(NotFound, match="no secret 'OTHER'"):
        boxed(network={"allow": ["good.test"], "secrets": ["OTHER"]})
    with pytest.raises(InvalidRequest, match="no rule allows a host"):
        boxed(network={"allow": ["evil.test"], "secrets": ["TOKEN"]})
    with pytest.raises(InvalidRequest, match="require network.allow"):
        boxed(network={"secrets": ["TOKEN"]})
    with pytest.raises(InvalidRequest, match="both a secret and"):
        boxed(network={"allow": ["good.test"], "secrets": ["TOKEN"]}, env={"TOKEN": "x"})


def test_an_ordinary_user_has_secrets_too(api, certificates):
    script = (
        "from sandkasten import Sandbox, Secrets\n"
        f"Secrets().set('TOKEN', {VALUE!r}, hosts='good.test', header={BEARER!r})\n"
        "with Sandbox(network={'allow': ['good.test'], 'secrets': ['TOKEN']}) as box:\n"
        f"    print(box.exec('curl -sS -m 10 https://good.test:{api.port}/user').output)\n"
    )
    with OrdinaryUser() as user:
        root = user.home / "root.pem"
        root.write_bytes(certificates[0].read_bytes())
        os.chown(root, user.id, user.id)
        env = {
            "SANDKASTEN_NETWORK_REACHABLE": "127.0.0.1/32",
            "SANDKASTEN_NETWORK_HOSTS": "good.test=127.0.0.1",
            "SANDKASTEN_NETWORK_CA_FILES": str(root),
        }
        done = user.python("-c", script, env=env, timeout_s=PATIENCE_S)
    assert done.stdout.startswith("hello"), done.stderr


@pytest.mark.long(reason="`make test` uses HTTP and the SDK")
def test_the_command_line_stores_lists_and_uses_secrets(api, certificates, tmp_path):
    env = {
        "PATH": os.environ["PATH"],
        "SANDKASTEN_DATA_DIR": str(tmp_path / "data"),
        "SANDKASTEN_NETWORK_REACHABLE": "127.0.0.1/32",
        "SANDKASTEN_NETWORK_HOSTS": "good.test=127.0.0.1",
        "SANDKASTEN_NETWORK_CA_FILES": str(certificates[0]),
    }

    def cli(*words: str, given: str = "", status: int = 0) -> str:
        command = [sys.executable, "-m", "sandkasten_server.cli", *words]
        done = subprocess.run(
            command, env=env, input=given, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stderr
        assert VALUE not in done.stdout + done.stderr
        return done.stdout.strip()

    stored = ("secret", "set", "TOKEN", "--host", "good.test", "--header", BEARER)
    assert cli(*stored, given=f"{VALUE}\n") == "TOKEN"
    cli(*stored, given=f"{VALUE}\nand more", status=125)
    (listed,) = json.loads(cli("secret", "ls", "--json"))
    assert listed["hosts"] == ["good.test"]
    assert "header Authorization" in cli("secret", "ls")
    code = (
        f"import urllib.request as u; print(u.urlopen('https://good.test:{api.port}/user').read())"
    )
    used = ("--allow", "good.test", "--secret", "TOKEN")
    assert cli("run", "-c", code, *used) == "b'hello\\n'"
    assert cli("secret", "rm", "TOKEN") == "TOKEN"
    cli("secret", "rm", "TOKEN", status=125)


def test_a_websocket_passes_and_no_other_protocol(boxed, api, secret):
    stored = secret()
    box = boxed(network={"allow": ["good.test"], "secrets": ["TOKEN"]})
    code = f"""
import socket, ssl
trusting = ssl.create_default_context()
for protocol in ("websocket", "h2c"):
    with socket.create_connection(("good.test", {api.port}), 10) as made:
        with trusting.wrap_socket(made, server_hostname="good.test") as made:
            made.sendall(b"GET /socket HTTP/1.1\\r\\nHost: good.test\\r\\nConnection: Upgrade\\r\\n"
                         b"Upgrade: " + protocol.encode() + b"\\r\\n\\r\\n")
            print(made.recv(65536).split(b"\\r\\n")[0].decode())
            if protocol == "websocket":
                for part in (b"{stored.placeholder}", b"s"):
                    made.sendall(bytes([0x81, 0x80 | len(part), 0, 0, 0, 0]) + part)
                    print(made.recv(65536)[2:].decode())
"""
    done = box.exec(["python3", "-c", code])
    assert done.output.splitlines() == [
        "HTTP/1.1 101 Switching Protocols",
        stored.placeholder,
        "s",
        "HTTP/1.1 502 Bad Gateway",
    ], done
    # The value was in the head, and nothing else has it.
    assert api.seen[0]["headers"]["Authorization"] == f"Bearer {VALUE}"
    assert "Upgrade" not in api.seen[1]["headers"]


def test_on_its_web_ports_an_inspected_host_gets_only_tls_and_http(boxed, monkeypatch):
    monkeypatch.setenv("SANDKASTEN_NETWORK_UNINSPECTED", "left.test")
    monkeypatch.setenv("SANDKASTEN_NETWORK_REACHABLE", "127.0.0.0/8")
    monkeypatch.setenv("SANDKASTEN_NETWORK_HOSTS", "web.test=127.0.0.77,left.test=127.0.0.77")
    web = Recorder("127.0.0.77", 443)
    other = Recorder("127.0.0.77", 8443)
    code = """
import socket, sys
for name, port in (word.split(":") for word in sys.argv[1:]):
    with socket.create_connection((name, int(port)), 10) as made:
        made.sendall(b"SSH-2.0-x\\r\\n")
        try:
            print(name, len(made.recv(100)))
        except ConnectionError:
            print(name, "reset")
"""
    with served(web), served(other):
        box = boxed(network={"allow": ["web.test", "left.test"], "inspect": True})
        tried = ["web.test:443", "web.test:8443", "left.test:443"]
        done = box.exec(["python3", "-c", code, *tried])
    assert done.output.splitlines() == ["web.test reset", "web.test 19", "left.test 19"], done
    assert (len(web.received), len(other.received)) == (1, 1)
    (refused,) = done.refused
    assert (refused.port, refused.rule) == (443, "bytes that are neither TLS nor HTTP")
    assert "network.uninspected" in refused.hint


def test_limits_count_inspected_connections(boxed, api):
    network = {"allow": ["good.test"], "inspect": True, "limits": {"bytes_in": 300_000}}
    box = boxed(network=network)
    url = f"https://good.test:{api.port}"
    assert '"path"' in curl(box, f"{url}/x")
    done = box.exec(["curl", "-sS", "-m", "20", "-o", "/dev/null", f"{url}/large"])
    assert done.exit_code != 0
    assert box.network().bytes_in <= 300_000
    assert "limit:bytes_in" in {one.rule for one in box.network_log() if one.event == "refused"}
    box.update(network={**network, "limits": {"bandwidth_bps": 16_000_000}})
    done = box.exec(
        ["curl", "-sS", "-m", "60", f"{url}/large", "-w", "%{size_download}", "-o", "x"]
    )
    assert done.output == "1000000", done


def test_a_client_that_pauses_gets_the_whole_answer(boxed, api):
    """The server has sent everything and ended before the client reads the rest."""
    box = boxed(network={"allow": ["good.test"], "inspect": True, "limits": {"idle_seconds": 60}})
    code = f"""
import socket, ssl, sys, time
trusting = ssl.create_default_context()
opened = []
for size in (400_000, 800_000):
    made = trusting.wrap_socket(socket.create_connection(("good.test", {api.port})),
                                server_hostname="good.test")
    head = b"GET /large?%d HTTP/1.1\\r\\nHost: good.test\\r\\nConnection: close\\r\\n\\r\\n"
    made.sendall(head % size)
    opened.append(made)
heads = [made.recv(1000) for made in opened]
time.sleep(6)
for made, got in zip(opened, heads):
    while piece := made.recv(65536):
        got += piece
    print(len(got.partition(b"\\r\\n\\r\\n")[2]))
"""
    done = box.exec(["python3", "-c", code])
    assert done.output.splitlines() == ["400000", "800000"], done
    closed = [one for one in box.network_log() if one.event == "closed"]
    assert {one.reason for one in closed} == {None}
