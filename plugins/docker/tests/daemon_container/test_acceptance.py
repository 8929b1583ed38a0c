"""A daemon in a container, from `up` to `down`, on an engine outside that container.

The engine creates the sandboxes and does not see the container's own files, so a path of the daemon
means nothing to the engine.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from plugins.docker.tests.daemon_container.conftest import KEY
from sandkasten import Agents, Sandbox, StoredFiles
from tests import built_images
from tests.deploy.capabilities import lacking
from tests.engines import stock
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plugins.docker.tests.daemon_container.conftest import Host

# The first of a checkout builds the images.
pytestmark = pytest.mark.timeout(built_images.PATIENCE_S)
DEBIAN = stock.reference("debian")
ROOT = Path(__file__).resolve().parents[4]
DATA, SHARED = "sandkasten-data", "station-sandboxes"


@pytest.fixture
def running_daemon(host: Host, daemon_image: str) -> Host:
    spoken = host.up()
    assert spoken.status == 0, spoken
    assert spoken.out == f"export SANDKASTEN_URL={host.url}\n"
    assert "created: " in spoken.err
    return host


def sandbox(host: Host) -> Sandbox:
    return Sandbox(url=host.url, api_key=KEY, image=DEBIAN)


def of_sessions(host: Host) -> list[str]:
    containers, volumes = host.mine()
    return [name for name in (*containers, *volumes) if "sbx_" in name]


@pytest.mark.promise("P56")
def test_a_session_works_completely_in_a_daemon_that_is_a_container(running_daemon):
    with sandbox(running_daemon) as box:
        assert box.id in running_daemon.docker_engine.reached.containers()
        assert box.exec("cd /tmp && export A=1").exit_code == 0
        assert box.exec("echo $A; pwd; id -u").output == "1\n/tmp\n1000\n"
        box.write("notes/a.txt", b"written from far away")
        assert box.read("/workspace/notes/a.txt") == b"written from far away"
        assert box.exec("cat /workspace/notes/a.txt").output == "written from far away"
        assert [entry.name for entry in box.ls("notes")] == ["a.txt"]
        box.remove("notes", recursive=True)
        assert not box.exists("notes")
        stored = StoredFiles(url=running_daemon.url, api_key=KEY)
        stored.put(b"6 * 7", key="sum")
        box.stage("sum", "sum.txt")
        assert box.exec("cd /workspace; tr 6 7 < sum.txt > r").exit_code == 0
        box.publish("r", "result")
        assert stored.get("result") == b"7 * 7"
    assert of_sessions(running_daemon) == []
    assert running_daemon.docker_engine.reached.containers() == ["sandkasten"]


@pytest.mark.promise("P56")
@pytest.mark.long(reason="`make test` has the session that works")
def test_a_plain_bind_of_the_daemons_path_fails_and_a_session_works(running_daemon):
    """A daemon in a container cannot offer the engine one of its own directories."""
    path = f"/tmp/station-sandboxes/sbx_{secrets.token_hex(8)}"
    running_daemon.docker("exec", "sandkasten", "mkdir", "-p", path)
    bind = {"Type": "bind", "Source": path, "Target": "/workspace"}
    body = {"Image": DEBIAN, "Cmd": ["true"], "HostConfig": {"Mounts": [bind]}}
    with pytest.raises(RuntimeError, match="bind source path does not exist: " + path):
        running_daemon.docker_engine.reached.ask("POST", "/containers/create", body)
    with sandbox(running_daemon) as box:
        box.write("there", b"1")
        assert box.exec("cat there").output == "1"


@pytest.mark.promise("P60")
def test_the_daemon_itself_is_confined(running_daemon):
    status = running_daemon.docker("exec", "sandkasten", "cat", "/proc/1/status").stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    # CHOWN, DAC_OVERRIDE and FOWNER.
    assert (int(fields["CapBnd"], 16), int(fields["CapEff"], 16)) == (0b1011, 0b1011)
    assert fields["NoNewPrivs"] == "1"
    written = running_daemon.docker("exec", "sandkasten", "touch", "/opt/x", check=False)
    assert "Read-only file system" in written.stderr
    shown = running_daemon.docker("inspect", "sandkasten").stdout
    assert KEY not in shown
    listing = running_daemon.docker(
        "exec", "sandkasten", "stat", "-c", "%a %u", "/var/lib/sandkasten"
    )
    assert listing.stdout == "700 0\n"


@pytest.mark.promise("P56")
@pytest.mark.long(reason="`make test` restarts daemons that are no containers")
def test_sessions_outlive_the_container_of_their_daemon(running_daemon):
    with sandbox(running_daemon) as box:
        box.exec("cd /tmp; echo kept > /workspace/f")
        again = running_daemon.up("--json").document
        assert (again["begun"], again["changed"]) == ("running", False)
        assert running_daemon.up("--workspace", "shared", "--json").document["changed"] is True
        replaced = running_daemon.up("--recreate", "--json")
        assert replaced.document["begun"] == "replaced", replaced
        assert box.exec("pwd; cat /workspace/f").output == "/tmp\nkept\n"
        assert running_daemon.cli("down", "--keep-sessions", "--json").document["kept"] == [DATA]
        assert running_daemon.docker_engine.reached.containers() == [box.id]
        assert running_daemon.up().status == 0
        assert box.exec("pwd; cat /workspace/f").output == "/tmp\nkept\n"
        running_daemon.docker("stop", "sandkasten")
        assert running_daemon.up("--json").document["begun"] == "replaced"
        answer = running_daemon.cli("up", "--status", "--json")
        assert (answer.status, answer.document["ready"], answer.document["sandboxes"]) == (
            0,
            True,
            1,
        )


_AGENT = """---
model: scripted
metadata: {name: writer}
sandbox: {mode: code, image: %s}
---
You write.
"""
_FLOW = """id: flow
steps:
  - {id: write, type: agent, agent: writer, next: done}
  - {id: done, type: end}
"""
_SCRIPT = {
    "agents": [
        {
            "turns": [
                {"calls": [{"name": "sandbox_exec", "arguments": {"command": "echo $((6*7))"}}]},
                {"text": "It printed ${last.stdout}"},
            ]
        }
    ]
}
_INITIALIZE = (
    '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
    '"capabilities":{},"clientInfo":{"name":"test","version":"0"}}}'
)


@pytest.fixture
def definitions(host: Host) -> Iterator[Path]:
    """Directories of agents and workflows beside the operator, with a model to start inside."""
    for name in ("agents", "workflows"):
        (host.folder / name).mkdir()
    (host.folder / "agents" / "writer.prompt").write_text(_AGENT % DEBIAN)
    (host.folder / "workflows" / "flow.yaml").write_text(_FLOW)
    (host.folder / "agents" / "script.json").write_text(json.dumps(_SCRIPT))
    shutil.copy(ROOT / "examples" / "agents" / "scripted_model.py", host.folder / "agents")
    yield host.folder
    for name in ("agents", "workflows"):
        shutil.rmtree(host.folder / name)


def _use_every_tool_of_code_mode(agents: Agents) -> None:
    def call(name: str, **arguments: Any) -> dict[str, Any]:
        answer = agents.call_tool(f"sandbox_{name}", arguments)
        assert answer.get("ok") is not False, (name, answer)
        return answer

    assert call("open", image=DEBIAN)["status"] == "ready"
    call("fs_write", path="a.txt", contents="6 * 7")
    assert call("fs_read", path="a.txt")["contents"] == "6 * 7"
    assert [entry["name"] for entry in call("fs_list")["entries"]] == ["a.txt"]
    started = call("exec", cmd=["sh", "-c", "cat a.txt; exit 3"], stream=True)
    assert call("exec_wait", exec_id=started["exec_id"])["exit_code"] == 3
    assert call("exec_read", exec_id=started["exec_id"])["chunks"][0]["text"] == "6 * 7"
    assert call("publish_file", source="a.txt", file_key="sum")["size_bytes"] == 5
    call("fs_delete", path="a.txt")
    assert call("stage_file", file_key="sum", destination="b.txt")["size_bytes"] == 5
    assert call("exec", cmd="cat b.txt")["stdout"] == "6 * 7"
    assert call("close")["closed"]


@pytest.mark.promise("P56")
def test_agents_workflows_tools_and_mcp_work_in_the_image(host, daemon_image, definitions):
    models = "SANDKASTEN_MODELS_BASE_URL=http://127.0.0.1:8600/v1"
    # A sandbox of the warm pool would be left while the daemon runs.
    spoken = host.up("--env", models, "--env", "SANDKASTEN_POOL_ONESHOT_SPARES=0")
    assert spoken.status == 0, spoken
    model = ("python", "/agents/scripted_model.py", "/agents/script.json", "--port", "8600")
    host.docker("exec", "--detach", "sandkasten", *model)
    with Agents(url=host.url, api_key=KEY) as agents:
        assert [agent.name for agent in agents.agents()] == ["writer"]
        assert [workflow.name for workflow in agents.workflows()] == ["flow"]
        done = agents.run_agent("writer", "compute")
        assert (done.status, done.output) == ("completed", "It printed 42\n"), done
        flowed = agents.run_workflow("flow", input="compute")
        assert flowed.status == "completed", flowed
        answer = agents.call_tool("sandbox_run", {"runtime": "bash", "code": "echo $((6*7))"})
        assert (answer["ok"], answer["stdout"]) == (True, "42\n")
        _use_every_tool_of_code_mode(agents)
    # The same image serves MCP: here over stdio, on the daemon that runs in the container.
    words = ("docker", "exec", "--interactive", "sandkasten", "sandkasten", "mcp")
    output = host.run("sh", "-c", f"echo {shlex.quote(_INITIALIZE)} | {shlex.join(words)}")
    assert json.loads(output.stdout)["result"]["serverInfo"]["name"] == "sandkasten"
    written = host.docker("exec", "sandkasten", "touch", "/agents/x", check=False)
    assert "Read-only file system" in written.stderr
    assert of_sessions(host) == []


@pytest.mark.promise("P58")
def test_down_removes_its_sessions_and_nothing_else(running_daemon):
    running_daemon.docker("create", "--name", "bystander", DEBIAN, "true")
    running_daemon.docker("volume", "create", "theirs")
    foreign = {"sandkasten": "cell", "sandkasten.owner": "somebody-else"}
    labels = [word for name, value in foreign.items() for word in ("--label", f"{name}={value}")]
    running_daemon.docker("create", "--name", "neighbour", *labels, DEBIAN, "true")
    box = sandbox(running_daemon)
    box.exec("echo alive")
    box.detach()
    removed = running_daemon.cli("down", "--json").document
    assert "sandkasten" in removed["containers"]
    assert removed["kept"] == [DATA]
    assert running_daemon.mine() == (["bystander", "neighbour"], [DATA, "theirs"])
    assert running_daemon.cli("down", "--json").document == {
        "containers": [],
        "volumes": [],
        "networks": [],
        "kept": [DATA],
    }
    assert running_daemon.cli("down", "--volumes", "--yes").out == f"removed volume {DATA}\n"
    assert running_daemon.mine() == (["bystander", "neighbour"], ["theirs"])
    assert running_daemon.cli("down").status == 0


@pytest.mark.promise("P58")
@pytest.mark.long(reason="`make test` removes the sessions of a daemon that runs")
def test_down_removes_sessions_whose_daemon_is_already_gone(running_daemon):
    box = sandbox(running_daemon)
    box.exec("true")
    name = box.detach()
    running_daemon.docker("rm", "--force", "sandkasten")
    assert name in running_daemon.docker_engine.reached.containers()
    assert name in running_daemon.cli("down", "--json").document["containers"]
    assert of_sessions(running_daemon) == []
    assert running_daemon.docker_engine.reached.containers() == []


@pytest.mark.long(reason="`make test` tests keys without a container")
@pytest.mark.promise("P60")
def test_a_key_is_created_shown_once_and_kept(host, daemon_image):
    created = host.up("--json", SANDKASTEN_API_KEY="")
    assert created.status == 0, created
    key = created.document["api_key"]
    assert _asked(host, key) == 200
    assert _asked(host, "sk-another-key") == 401
    assert host.up("--json", SANDKASTEN_API_KEY="").document["api_key"] is None
    assert host.up("--recreate", "--json", SANDKASTEN_API_KEY="").document["api_key"] is None
    assert _asked(host, key) == 200
    assert host.up("--recreate", "--api-key", KEY, SANDKASTEN_API_KEY="").status == 0
    assert (_asked(host, key), _asked(host, KEY)) == (401, 200)


@pytest.mark.promise("P60")
@pytest.mark.long(reason="`make test` checks the user in the plan of every kind of daemon")
def test_the_daemon_is_not_root_when_it_has_no_sandbox_files(host, daemon_image):
    assert host.up("--workspace", "volume").status == 0
    assert host.docker("exec", "sandkasten", "id", "-u").stdout == "10001\n"
    with sandbox(host) as box:
        assert f"station-sandbox-{box.id}" in host.docker_engine.reached.volumes()
        box.write("f", b"1")
        assert box.exec("cat f").output == "1"
    assert of_sessions(host) == []
    refused = host.up("--recreate", "--json")
    assert refused.document["code"] == "CONFLICT"
    assert "belongs to user 10001:10001" in refused.document["message"]
    assert host.cli("up", "--status").status == 0


def test_a_daemon_can_use_a_remote_engine(host, daemon_image):
    reached = host.docker_engine.reached
    docker_engine = ("--engine", reached.host, "--engine-certs", reached.certificates)
    spoken = host.up("--mode", "remote", *docker_engine)
    assert spoken.status == 0, spoken
    assert host.docker("exec", "sandkasten", "id", "-u").stdout == "10001\n"
    key = Path(reached.certificates, "key.pem").read_text()
    assert json.dumps(key)[1:-1] not in host.docker("inspect", "sandkasten").stdout
    with sandbox(host) as box:
        assert box.exec("echo there").output == "there\n"
    assert host.cli("down", "--volumes", "--yes").status == 0
    assert host.mine() == ([], [])


@pytest.mark.promise("P56")
@pytest.mark.long(reason="`make test` runs both suites on docker/remote")
def test_a_daemon_can_use_a_sidecar_engine(host, daemon_image):
    """Uses the commands of a dry run. Where this machine lacks a capability it cannot grant it, so
    `--privileged` is written out piece by piece.
    """
    mode = ("--mode", "sidecar", "--engine-image", built_images.sidecar(host), "--json")
    for line in host.up(*mode, "--dry-run").document["commands"]:
        words = shlex.split(line)
        if "--privileged" in words:
            at = words.index("--privileged")
            words[at : at + 1] = _privileged()
        host.run(*words, env={"SANDKASTEN_API_KEY": KEY})
    spoken = host.up(*mode)
    assert spoken.status == 0, spoken
    assert (spoken.document["begun"], spoken.document["changed"]) == ("running", False)
    assert host.docker_engine.reached.containers() == ["sandkasten", "sandkasten-engine"]
    archive = str(host.folder / "debian.tar")
    host.docker("save", "--output", archive, DEBIAN)
    host.docker("cp", archive, "sandkasten-engine:/debian.tar")
    host.docker("exec", "sandkasten-engine", "docker", "load", "--input", "/debian.tar")
    with sandbox(host) as box:
        assert box.exec("echo inside").output == "inside\n"
        # On the engine beside the daemon, and not on the machine's.
        assert of_sessions(host) == []
    removed = host.cli("down", "--json").document
    assert removed["containers"] == ["sandkasten", "sandkasten-engine"]
    assert removed["kept"] == [DATA, "sandkasten-engine"]
    assert host.cli("down", "--volumes", "--yes").status == 0
    assert host.mine() == ([], [])
    assert "sandkasten" not in host.docker("network", "ls", "--format", "{{.Name}}").stdout


def _privileged() -> list[str]:
    """Return `--privileged` without the capabilities that this machine lacks."""
    missing = lacking()
    if not missing:
        return ["--privileged"]
    return [
        *("--cap-add", "ALL", *(word for name in missing for word in ("--cap-drop", name))),
        *("--security-opt", "seccomp=unconfined", "--security-opt", "systempaths=unconfined"),
        *("--device-cgroup-rule", "a *:* rwm"),
    ]


def _asked(host: Host, key: str) -> int:
    connection = http.client.HTTPConnection(host.listen, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request("GET", "/v1/sessions", headers={"Authorization": f"Bearer {key}"})
        return connection.getresponse().status
