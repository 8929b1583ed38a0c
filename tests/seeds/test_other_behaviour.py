"""Requirements of the source documents that no other test shows."""

from __future__ import annotations

import http.server
import json
import struct
from typing import Any

import pytest

from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_agents.definitions.sandbox_field import parse_sandbox
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.images.image_names import all_aliases
from sandkasten_server.daemon.daemon_assembly import open_daemon
from tests.agents.desk import Desk, opened
from tests.engine.injections import World
from tests.network.conftest import served
from tests.seeds.documents import ROOT
from tests.shared_sandbox_cases import few

RUNNER = ROOT / "src" / "sandkasten_runtime" / "_bin" / "sandkasten-runner"
PROGRAM_INTERPRETER = 3
JOIN = """
import collections, json
names = {one["id"]: one["name"] for one in json.load(open("users.json"))}
count = collections.Counter(names[one["user"]] for one in json.load(open("events.json")))
print(json.dumps(count.most_common(2)))
"""


def asking(desk: Desk, sandbox: dict[str, Any]) -> Desk:
    """Return a toolbox for an agent whose file has this below `sandbox:`."""
    parsed, warnings = parse_sandbox(sandbox)
    assert warnings == ()
    return desk.asking(parsed)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def desk(tmp_path_factory, anyio_backend):
    async with opened(tmp_path_factory.mktemp("seeds") / "d") as one:
        yield one


@pytest.mark.parametrize(
    ("runtime", "code", "name"),
    [
        ("python", "import os; print(os.getcwd(), os.path.realpath(__file__))", "main.py"),
        ("node", "console.log(process.cwd(), __filename)", "main.js"),
        ("bash", "echo $PWD $(realpath $0)", "main.sh"),
    ],
)
async def test_code_and_files_are_below_work(desk, runtime, code, name):
    computing = asking(desk, {"runtime": runtime})
    ran = await computing.call("run", code=code)
    assert ran["stdout"] == f"/workspace /workspace/{name}\n", ran
    shown = f"cat /work/data/in.txt; readlink -f /work; test -e /work/{name} || echo none"
    listed = await computing.call(
        "run", runtime="bash", code=shown, files={"data/in.txt": "given\n"}
    )
    there = "" if name == "main.sh" else "none\n"
    assert listed["stdout"] == f"given\n/workspace\n{there}", listed


async def test_two_datasets_are_joined_and_the_most_frequent_are_counted(desk):
    users = [{"id": number, "name": f"user {number}"} for number in range(100)]
    events = [{"user": 7}] * 30 + [{"user": 5}] * 20 + [{"user": number} for number in range(100)]
    given = {"users.json": json.dumps(users), "events.json": json.dumps(events)}
    ran = await asking(desk, {"runtime": "python"}).call("run", code=JOIN, files=given)
    assert json.loads(ran["stdout"]) == [["user 7", 31], ["user 5", 21]]


async def test_a_tool_that_cannot_run_answers_with_an_error(desk):
    answer = await asking(desk, {"image": "missing.invalid/image:1"}).call("run", code="print(1)")
    assert answer["ok"] is False
    assert (type(answer["error"]), type(answer["code"])) == (str, str)
    assert "stdout" not in answer


async def test_the_shell_is_bash(desk):
    told = await desk.call("exec", command="echo ${BASH_VERSION:+bash}")
    assert told["stdout"] == "bash\n"
    await desk.call("close")


async def test_a_program_is_compiled_and_run(desk):
    """With the compiler of the machine; tests/local has one of an image."""
    source = '#include <stdio.h>\nint main(void) { return puts("compiled") < 0; }\n'
    await desk.call("fs_write", path="app.c", contents=source)
    ran = await desk.call("exec", command="gcc -o app app.c && ./app")
    assert (ran["exit_code"], ran["stdout"]) == (0, "compiled\n"), ran
    await desk.call("close")


@pytest.mark.root
@pytest.mark.parametrize("backend", few(["local", "oci"]))
@pytest.mark.parametrize("field", [{"allow_network": True}, {"network": {"enabled": True}}])
async def test_an_agent_reaches_the_network_if_its_file_and_the_operator_allow_it(
    tmp_path, backend, field
):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"reached")

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    network = {"network_reachable": "127.0.0.1/32", "network_hosts": "good.test=127.0.0.1"}
    network |= {"network_servers": "127.0.0.1:1", "policy_allow_network": "true"}
    with served(server) as port:
        code = (
            "import urllib.request\n"
            f"print(urllib.request.urlopen('http://good.test:{port}/').read().decode())"
        )
        async with opened(tmp_path / "allowed", backend, **network) as allowed:
            assert (await asking(allowed, field).call("run", code=code))["stdout"] == "reached\n"
            silent = await asking(allowed, {"runtime": "python"}).call("run", code=code)
            assert (silent["ok"], silent["stdout"]) == (False, "")
        del network["policy_allow_network"]
        async with opened(tmp_path / "forbidden", backend, **network) as forbidden:
            refused = await asking(forbidden, field).call("run", code=code)
            assert (refused["code"], refused["details"]["rule"]) == ("FORBIDDEN", "policy.network")


def test_a_variable_of_the_server_enters_sandboxes_only_if_it_is_listed(tmp_path):
    environ = {"SANDKASTEN_POLICY_ENV_ALLOW": "LISTED", "LISTED": "1", "SECRET": "2"}
    assert load({}, environ, tmp_path).policy.env == {"LISTED": "1"}
    assert load({}, {"SECRET": "2"}, tmp_path).policy.env == {}


async def test_the_database_is_the_file_of_the_setting(tmp_path):
    (tmp_path / "sandkasten.yaml").write_text(f"db_path: {tmp_path / 'named.db'}\n")
    flags = {"data_dir": str(tmp_path / "data"), "listen": "127.0.0.1:0"}
    async with open_daemon(load(flags, {"HOME": str(tmp_path)}, tmp_path)):
        assert (tmp_path / "named.db").read_bytes().startswith(b"SQLite format 3")


def test_the_file_limits_of_the_design_are_the_defaults(tmp_path):
    limits = load({}, {}, tmp_path).policy.limits
    assert (limits.tool_file_bytes, limits.tool_files) == (10_485_760, 100)


def test_the_image_shortcuts_are_those_of_the_design():
    wanted = dict.fromkeys(("linux", "bash", "shell"), "ubuntu:22.04")
    wanted |= {"python": "python:3.11-slim", "node": "node:20-slim"}
    aliases = all_aliases({})
    assert {name: aliases[name] for name in wanted} == wanted


async def test_a_command_a_read_and_a_write_extend_the_session():
    world = World()
    engine = world.engine
    the_id = (await engine.create(CreateRequest(SandboxOptions(ttl_seconds=60)))).id
    left = (await engine.get(the_id)).expires_at
    try:
        for number, work in enumerate(
            (
                lambda: engine.exec(the_id, ExecRequest("true")),
                lambda: engine.files.write(the_id, "/workspace/x", b"1"),
                lambda: engine.files.read(the_id, "/workspace/x"),
            ),
            1,
        ):
            world.clock.ahead_s = 30 * number
            await work()
            assert (await engine.get(the_id)).expires_at == pytest.approx(left + 30 * number, abs=5)
    finally:
        await engine.destroy(the_id)
        await engine.aclose()


def test_the_runner_is_a_static_program():
    """A program that is not static names the interpreter that loads its libraries."""
    program = RUNNER.read_bytes()
    assert program[:4] == b"\x7fELF"
    [table] = struct.unpack_from("<Q", program, 32)
    size, count = struct.unpack_from("<HH", program, 54)
    kinds = [struct.unpack_from("<I", program, table + size * at)[0] for at in range(count)]
    assert kinds
    assert PROGRAM_INTERPRETER not in kinds
