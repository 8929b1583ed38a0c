"""Every field of `sandbox:` has its effect on a real sandbox."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from sandkasten_agents.definitions.sandbox_field import LIMIT_FIELDS, SANDBOX_FIELDS, parse_sandbox
from sandkasten_agents.definitions.strict_yaml import load
from tests import imagekit
from tests.agents.desk import cleared, fresh, opened
from tests.packages import wheels
from tests.patience import PATIENCE_S

FORKS = """
import os, time
made = 0
try:
    while made < 40:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
finally:
    print(made)
"""
HOG = "data = bytearray(256 << 20)\nprint('had it all')"


def asks(desk, text: str, **context):
    """Return a toolbox for an agent whose file has this below `sandbox:`."""
    sandbox, warnings = parse_sandbox(load(text, max_bytes=10_000, what="sandbox"))
    assert warnings == ()
    return desk.asking(sandbox, **context)


def quota_of(sandbox_id: str) -> str:
    """Return microseconds per 100 ms from its cgroup, of either version."""
    # Groups of other sandboxes come and go meanwhile, which os.walk passes over.
    walked = (Path(at) for at, _, _ in os.walk("/sys/fs/cgroup"))
    groups = [at for at in walked if at.parts[-2:] == ("sandkasten", sandbox_id)]
    told = [at / name for at in groups for name in ("cpu.max", "cpu.cfs_quota_us")]
    return next(one.read_text().split()[0] for one in told if one.exists())


@pytest.fixture(scope="module")
async def engine_with_image(tmp_path_factory, anyio_backend):
    """An engine whose store has an image of one static program."""
    place = tmp_path_factory.mktemp("p")
    await asyncio.to_thread(imagekit.store_with, place / "images", imagekit.busybox_tar())
    async with opened(place) as one:
        yield one


@pytest.fixture
async def busybox(engine_with_image):
    yield fresh(engine_with_image.engine, engine_with_image.store)
    await cleared(engine_with_image.engine)


@pytest.mark.promise("P61")
def test_every_field_of_the_sandbox_is_tested_in_this_file():
    """The name of each field occurs in the tests below."""
    here = Path(__file__).read_text()
    fields = {*SANDBOX_FIELDS, *LIMIT_FIELDS}
    assert [name for name in sorted(fields) if f"{name}:" not in here] == []


# ---- runtime, image and packages


async def test_a_string_is_a_runtime_in_compute_mode(tools):
    answer = await asks(tools, "python").call("run", code="import sys; print(sys.version_info[0])")
    assert (answer["ok"], answer["runtime"], answer["stdout"]) == (True, "python", "3\n")
    answer = await asks(tools, "bash").call("run", code="echo ${BASH_VERSION:+yes}")
    assert (answer["runtime"], answer["stdout"]) == ("bash", "yes\n")


async def test_mode_determines_the_tools(tools):
    assert "ok" not in await asks(tools, "{mode: code}").call("exec", cmd="true")
    refused = await asks(tools, "{mode: compute}").call("exec", cmd="true")
    assert refused["message"] == "unknown tool 'sandbox_exec'"


async def test_runtime_is_the_default_of_the_models_choice(tools):
    tools = asks(tools, "{runtime: bash}")
    assert (await tools.call("run", code="echo $0"))["stdout"] == "/workspace/main.sh\n"
    named = await tools.call("run", runtime="python", code="print(__file__)")
    assert named["stdout"] == "/workspace/main.py\n"


async def test_image_sets_the_sandbox_image_and_overrides_runtime(busybox):
    coding = asks(busybox, "{mode: code, runtime: python, image: busybox}")
    assert (await coding.call("open"))["image"] == "busybox:latest"
    assert (await coding.call("exec", cmd="ls /"))["stdout"].split()[0] == "bin"
    computing = asks(busybox, "{image: busybox, runtime: bash}")
    ran = await computing.call("run", runtime="sh", code="readlink /bin/ls")
    assert (ran["image"], ran["stdout"]) == ("busybox:latest", "busybox\n")


async def test_a_runtime_can_be_an_image(busybox):
    ran = await asks(busybox, "{runtime: busybox}").call("run", code="readlink /bin/ls")
    assert (ran["image"], ran["runtime"], ran["stdout"]) == ("busybox:latest", "sh", "busybox\n")
    coding = asks(busybox, "{mode: code, runtime: busybox}")
    assert (await coding.call("open"))["image"] == "busybox:latest"


async def test_an_unknown_image_and_one_that_is_an_option_are_refused(tools):
    missing = await asks(tools, "{mode: code, image: 'nowhere:1'}").call("open")
    # Where a registry can be reached, it is looked for there.
    assert missing["code"] in ("IMAGE_NOT_FOUND", "REGISTRY_UNAVAILABLE")
    assert (await tools.call("open", image="--privileged"))["code"] == "INVALID_IMAGE"


async def test_backend_is_used_instead_of_the_default(tools):
    coding = asks(tools, "{mode: code, backend: local}")
    assert (await coding.call("exec", cmd="echo here"))["stdout"] == "here\n"
    unknown = await asks(tools, "{mode: code, backend: lokal}").call("open")
    assert (unknown["code"], "local" in unknown["hint"]) == ("BACKEND_UNAVAILABLE", True)


async def test_hostname_is_the_name_of_the_machine_inside(tools):
    coding = asks(tools, "{mode: code, hostname: builder}")
    assert (await coding.call("exec", cmd="cat /proc/sys/kernel/hostname"))["stdout"] == "builder\n"


async def test_profile_dev_is_root_on_a_writable_root(busybox):
    text = "{mode: code, image: busybox, profile: %s}"
    for profile, uid, can_write in (("hardened", "1000", "1"), ("dev", "0", "0")):
        desk = asks(busybox, text % profile, agent_run_id=f"run_{profile}")
        told = await desk.call("exec", cmd="id -u; touch /new 2>&-; echo $?")
        assert told["stdout"].split() == [uid, can_write]


async def test_hostname_is_the_name_inside_the_sandbox(busybox):
    desk = asks(busybox, "{mode: code, image: busybox, hostname: builder}")
    answer = await desk.call("exec", cmd="hostname")
    assert answer["stdout"] == "builder\n"


@pytest.mark.long(reason="`make test` has it in plugins/build")
async def test_packages_are_available_without_a_network(tmp_path):
    wheels.wheel(tmp_path / "w", "greeting", "1.5")
    script = "import greeting, socket; print(greeting.VERSION, len(socket.if_nameindex()))"
    with wheels.serving() as server:
        server.package("left", "1.2.3", files={"index.js": "module.exports = 'left'"})
        settings = {"packages_find_links": str(tmp_path / "w"), "packages_npm_registry": server.url}
        async with opened(tmp_path / "d", **settings) as desk:
            text = "pip_packages: [greeting], npm_packages: ['left@1.2.3']"
            ran = await asks(desk, f"{{{text}}}").call("run", code=script)
            assert ran["stdout"] == "1.5 1\n", ran
            coding = asks(desk, f"{{mode: code, {text}}}")
            told = await coding.call("exec", cmd=["python3", "-c", script])
            assert told["stdout"] == "1.5 1\n", told
            told = await coding.call("exec", cmd="node -p \"require('left')\"")
            assert told["stdout"] == "left\n", told


# ---- sessions


@pytest.mark.parametrize(
    ("session", "key"),
    [
        ("default", "workflow:flow:default"),
        ("workflow", "workflow:flow:default"),
        ("isolated", "agent:run_a:default"),
        ("agent", "agent:run_a:default"),
        ("notes", "workflow:flow:notes"),
    ],
)
async def test_session_determines_which_agents_share_the_sandbox(tools, session, key):
    text = f"{{mode: code, session: {session}}}"
    one = asks(tools, text, workflow_run_id="flow")
    two = asks(tools, text, workflow_run_id="flow", agent_run_id="run_b")
    assert (await one.call("open"))["session_key"] == key
    await one.call("fs_write", path="x", text="1")
    shared = "contents" in await two.call("fs_read", path="x")
    assert shared == key.startswith("workflow:")


async def test_a_shared_session_keeps_its_image_and_another_image_is_refused(busybox):
    flow = {"workflow_run_id": "flow"}
    made = await asks(busybox, "{mode: code, image: busybox}", **flow).call("open")
    # With the cached state of this process, and without it.
    for desk in (busybox, fresh(busybox.engine, busybox.store)):
        for text in (
            "{mode: code}",
            "{mode: code, image: busybox}",
            "{mode: code, runtime: linux}",
            "{mode: code, runtime: 'nowhere:1'}",
        ):
            found = await asks(desk, text, **flow).call("fs_list")
            assert found["sandbox_id"] == made["sandbox_id"]
        for text in ("{mode: code, image: host}", "{mode: code, image: busybox, profile: dev}"):
            refused = await asks(desk, text, **flow).call("fs_list")
            assert (refused["code"], refused["details"]["sandbox_id"]) == (
                "CONFLICT",
                made["sandbox_id"],
            )
            assert "session: isolated" in refused["hint"]


# ---- timeouts


async def test_timeout_seconds_is_the_default_timeout_of_commands_and_runs(tools):
    ended = await asks(tools, "{mode: code, timeout_seconds: 0.3}").call("exec", cmd="sleep 60")
    assert (ended["timed_out"], ended["status"]) == (True, "timed_out")
    ran = await asks(tools, "{timeout_seconds: 1}").call("run", code="import time; time.sleep(60)")
    assert (ran["ok"], ran["timed_out"], ran["limits"]["timeout_seconds"]) == (False, True, 1)


async def test_the_model_can_choose_another_timeout(tools):
    coding = asks(tools, "{mode: code, timeout_seconds: 60}")
    ended = await coding.call("exec", cmd=["sleep", "60"], timeout_seconds=0.2)
    assert (ended["timed_out"], ended["why"]["code"]) == (True, "TIMEOUT")


async def test_exec_timeout_seconds_in_limits_means_the_same(tools):
    coding = asks(tools, "{mode: code, limits: {exec_timeout_seconds: 0.3}}")
    assert (await coding.call("exec", cmd="sleep 60"))["timed_out"] is True


async def test_max_exec_timeout_seconds_bounds_the_models_timeout(tools):
    coding = asks(tools, "{mode: code, limits: {max_exec_timeout_seconds: 5}}")
    refused = await coding.call("exec", cmd="true", timeout_seconds=6)
    assert refused["message"] == "a timeout of 6 s is over max_exec_timeout_seconds (5)"


async def test_a_sandbox_that_is_idle_too_long_ends(tools):
    coding = asks(tools, "{mode: code, limits: {timeout_seconds: 1}}")
    opened = await coding.call("fs_write", path="x", text="1")
    info = await tools.engine.get(opened["sandbox_id"])
    assert info.idle_timeout_s == 1
    deadline = time.monotonic() + PATIENCE_S
    while info.status == "running":
        assert time.monotonic() < deadline, info
        await asyncio.sleep(0.1)
        info = await tools.engine.get(opened["sandbox_id"])
    missing = await coding.call("fs_read", path="x")
    assert missing["code"] == "FILE_NOT_FOUND"
    assert missing["notice"].startswith("the sandbox of this session ended")


async def test_idle_timeout_seconds_means_the_same(tools):
    opened = await asks(tools, "{mode: code, limits: {idle_timeout_seconds: 70}}").call("open")
    assert (await tools.engine.get(opened["sandbox_id"])).idle_timeout_s == 70


async def test_a_run_can_only_shorten_the_idle_time(tools):
    for text, longest, idle_s in (
        ("{mode: code}", 40.0, 40),
        ("{mode: code}", 99_999.0, 1800),
        ("{mode: code, limits: {idle_timeout_seconds: 20}}", 40.0, 20),
        ("{mode: code, limits: {idle_timeout_seconds: 60}}", 40.0, 40),
    ):
        run = f"run_{idle_s}_{longest:g}"
        coding = asks(tools, text, idle_timeout_s=longest, agent_run_id=run)
        opened = await coding.call("open")
        assert (await tools.engine.get(opened["sandbox_id"])).idle_timeout_s == idle_s


# ---- limits


@pytest.mark.parametrize("spelling", ["memory_mb: 64", "mem_limit_mb: 64"])
async def test_memory_is_enforced_by_the_kernel(tools, spelling):
    coding = asks(tools, f"{{mode: code, limits: {{{spelling}}}}}")
    hog = await coding.call("exec", cmd=["python3", "-c", HOG])
    assert (hog["oom_killed"], hog["stdout"], hog["why"]["code"]) == (True, "", "OOM")
    ran = await asks(tools, f"{{limits: {{{spelling}}}}}").call("run", code=HOG)
    assert (ran["ok"], ran["oom_killed"]) == (False, True)
    assert ran["limits"]["mem_limit_mb"] == 64
    # Twice as much as requested.
    innocent = await asks(tools, "{limits: {memory_mb: 512}}").call("run", code=HOG)
    assert innocent["stdout"] == "had it all\n"


async def test_workspace_mb_limits_writes(tools):
    coding = asks(tools, "{mode: code, limits: {workspace_mb: 4}}")
    filled = await coding.call("exec", cmd="head -c 8000000 /dev/zero > big; stat -c %s big")
    assert "No space left" in filled["stderr"]
    assert int(filled["stdout"]) <= 4 << 20
    refused = await coding.call("fs_write", path="more", text="x" * 2_000_000)
    assert refused["code"] == "QUOTA_EXCEEDED"


async def test_tmp_mb_is_the_size_of_tmp(tools):
    coding = asks(tools, "{mode: code, limits: {tmp_mb: 2}}")
    filled = await coding.call("exec", cmd="head -c 8000000 /dev/zero > /tmp/big")
    assert (filled["exit_code"], "No space left" in filled["stderr"]) == (1, True)


@pytest.mark.parametrize("spelling", ["cpu_millicores: 250", "cpu_limit: 0.25"])
async def test_the_processor_share_is_set_in_the_cgroup(tools, spelling):
    coding = asks(tools, f"{{mode: code, limits: {{{spelling}}}}}")
    the_id = (await coding.call("open"))["sandbox_id"]
    assert quota_of(the_id) == "25000"
    # It runs a quarter of the time; the kernel throttles it for the rest.
    spun = await coding.call("exec", cmd="timeout 0.5 sh -c 'while :; do :; done'")
    assert spun["usage"]["cpu_ms"] <= spun["duration_ms"] / 4 + 100


async def test_pids_limit_is_enforced_by_the_kernel(tools):
    coding = asks(tools, "{mode: code, limits: {pids_limit: 16}}")
    forked = await coding.call("exec", cmd=["python3", "-c", FORKS])
    assert "BlockingIOError" in forked["stderr"]
    assert 1 <= int(forked["stdout"]) < 16


async def test_max_open_files_is_enforced_by_the_kernel(tools):
    told = await asks(tools, "{mode: code, limits: {max_open_files: 128}}").call(
        "exec", cmd="ulimit -n"
    )
    assert told["stdout"] == "128\n"


@pytest.mark.promise("P63")
async def test_max_stdout_bytes_and_max_stderr_bytes_truncate_output(tools):
    write = "import sys; sys.stdout.write('o' * 5000); sys.stderr.write('e' * 5000)"
    text = "max_stdout_bytes: 100, max_stderr_bytes: 50"
    for given in (f"{{{text}}}", f"{{limits: {{{text}}}}}"):
        ran = await asks(tools, given).call("run", code=write)
        assert (ran["stdout"].count("o"), ran["stderr"].count("e")) == (101, 52)
        assert ran["truncated"] is True
        assert "4900 bytes not kept" in ran["stdout"]
    coding = asks(tools, f"{{mode: code, {text}}}")
    ran = await coding.call("exec", cmd=["python3", "-c", write])
    assert (ran["stdout"].count("o"), ran["stderr"].count("e")) == (101, 52)
    assert (ran["truncated"], ran["stdout_bytes"]) == (True, 5000)


async def test_an_agents_output_limit_applies_in_a_sandbox_opened_by_another(tools):
    wide = asks(tools, "{mode: code}", workflow_run_id="flow")
    narrow = asks(tools, "{mode: code, max_stdout_bytes: 100}", workflow_run_id="flow")
    await wide.call("open")
    ran = await narrow.call("exec", cmd="head -c 5000 /dev/zero | tr '\\0' o")
    assert (ran["stdout"].count("o"), ran["truncated"]) == (101, True)
    assert (await wide.call("exec", cmd="head -c 5000 /dev/zero"))["truncated"] is False


async def test_max_artifacts_count_omits_more_artifacts_and_reports_them(tools):
    tools = asks(tools, "{limits: {max_artifacts_count: 1}}")
    code = "for name in 'ab': open(name, 'w').write(name)"
    ran = await tools.call("run", code=code, artifacts=["a", "b"])
    assert [one["path"] for one in ran["artifacts"]] == ["a"]
    assert ran["limits"]["max_artifacts_count"] == 1
    assert "1 more artifacts were left out (at most 1)" in ran["warnings"]


async def test_max_artifact_bytes_omits_larger_artifacts_and_reports_them(tools):
    tools = asks(tools, "{limits: {max_artifact_bytes: 10}}")
    ran = await tools.call("run", runtime="bash", code="printf %011d 1 > a", artifacts=["a"])
    [artifact] = ran["artifacts"]
    assert (artifact["size_bytes"], "content_base64" in artifact) == (11, False)
    assert artifact["omitted_reason"]


async def test_max_file_size_bytes_bounds_the_file_tools_and_not_commands(tools):
    coding = asks(tools, "{mode: code, limits: {max_file_size_bytes: 10}}")
    assert (await coding.call("fs_write", path="x", text="1234567890"))["size_bytes"] == 10
    refused = await coding.call("fs_write", path="x", text="12345678901")
    assert (refused["code"], refused["details"]["limit"]) == ("PAYLOAD_TOO_LARGE", 10)
    assert (await coding.call("exec", cmd="head -c 99 /dev/zero > x"))["exit_code"] == 0
    computing = asks(tools, "{limits: {max_file_size_bytes: 10}}")
    refused = await computing.call("run", code="", files={"x": "12345678901"})
    assert refused["code"] == "PAYLOAD_TOO_LARGE"


async def test_max_files_bounds_the_number_of_files_the_tools_write(tools):
    coding = asks(tools, "{mode: code, limits: {max_files: 2}}")
    assert (await coding.call("fs_write", path="a", text="1"))["ok"]
    assert (await coding.call("fs_write", path="b", text="1"))["ok"]
    # Writing the same file again does not count, under any spelling of its path.
    assert (await coding.call("fs_write", path="/work/b", text="2"))["ok"]
    refused = await coding.call("fs_write", path="c", text="1")
    assert (refused["code"], refused["details"]["limit"]) == ("PAYLOAD_TOO_LARGE", 2)
    assert (await coding.call("exec", cmd="touch c d e"))["exit_code"] == 0
    await coding.call("fs_delete", path="a")
    assert (await coding.call("fs_write", path="f", text="1"))["ok"]
    computing = asks(tools, "{limits: {max_files: 2}}")
    many = await computing.call("run", code="", files={"a": "", "b": "", "c": ""})
    assert many["code"] == "PAYLOAD_TOO_LARGE"


# ---- GPUs


@pytest.mark.parametrize("field", ["gpus: 2", "gpus: all", "limits: {gpus: 2}"])
async def test_requested_gpus_are_refused_and_never_silently_dropped(tools, field):
    coding = await asks(tools, f"{{mode: code, {field}}}").call("open")
    computing = await asks(tools, f"{{{field}}}").call("run", code="print(1)")
    assert coding["code"] == computing["code"] == "FORBIDDEN"
    assert coding["details"]["rule"] == computing["details"]["rule"] == "policy.gpus"
    assert await tools.engine.list() == []


async def test_allowed_gpus_are_asked_of_the_backend(tmp_path):
    async with opened(tmp_path / "d", "unisolated", policy_gpus="1") as desk:
        for field in ("gpus: 1", "gpus: ['0']", "limits: {gpus: 1}"):
            coding = await asks(desk, f"{{mode: code, {field}}}").call("open")
            computing = await asks(desk, f"{{{field}}}").call("run", code="print(1)")
            assert coding["code"] == computing["code"] == "UNSUPPORTED_BY_BACKEND"
            assert coding["message"] == "backend unisolated cannot give a sandbox GPUs"
        many = await asks(desk, "{mode: code, gpus: 2}").call("open")
        assert (many["code"], many["details"]["rule"]) == ("FORBIDDEN", "policy.gpus")
        none = await asks(desk, "{gpus: 0}").call("run", code="print(1)")
        assert none["stdout"] == "1\n"


# ---- network


@pytest.mark.promise("P03")
@pytest.mark.parametrize(
    "field",
    ["allow_network: true", "network: {enabled: true}", "network: {allow: [example.org]}"],
)
async def test_a_requested_network_is_refused_and_never_silently_dropped(tools, field):
    coding = await asks(tools, f"{{mode: code, {field}}}").call("open")
    computing = await asks(tools, f"{{{field}}}").call("run", code="print(1)")
    assert coding["code"] == computing["code"] == "FORBIDDEN"
    assert coding["details"]["rule"] == "policy.network"
    assert await tools.engine.list() == []


async def test_a_request_over_the_operators_limits_names_the_rule(tmp_path):
    async with opened(tmp_path / "d", "unisolated", policy_max_mem_limit_mb="128") as desk:
        refused = await asks(desk, "{mode: code, limits: {memory_mb: 256}}").call("fs_list")
        assert (refused["code"], refused["details"]["rule"]) == (
            "FORBIDDEN",
            "policy.max.mem_limit_mb",
        )
        allowed = await asks(desk, "{mode: code, limits: {memory_mb: 128}}").call("fs_list")
        assert allowed["entries"] == []
        long = await asks(desk, "{timeout_seconds: 3601}").call("run", code="")
        assert long["details"]["rule"] == "defaults.max_exec_timeout_ms"


async def test_without_a_network_there_is_only_loopback(tools):
    for field in ("allow_network: false", "network: {enabled: false}"):
        ran = await asks(tools, f"{{{field}}}").call(
            "run", runtime="bash", code="ls /sys/class/net"
        )
        assert ran["stdout"].split() in (["lo"], [])
