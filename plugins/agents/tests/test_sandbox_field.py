"""The `sandbox:` field of an agent file: every key, its other spellings, and invalid ones."""

from __future__ import annotations

import pytest

from sandkasten.errors import InvalidAgent
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten_agents.definitions.sandbox_field import parse_sandbox
from sandkasten_tools.calls.agent_sandbox import AgentSandbox
from sandkasten_tools.calls.run_context import RunContext


def sandbox(**fields) -> AgentSandbox:
    found, warnings = parse_sandbox(fields)
    assert warnings == ()
    return found


def refusal(value) -> InvalidAgent:
    with pytest.raises(InvalidAgent) as caught:
        parse_sandbox(value)
    return caught.value


def test_a_string_selects_a_runtime_in_compute_mode():
    assert parse_sandbox("python") == (AgentSandbox(mode="compute", runtime="python"), ())


@pytest.mark.promise("P61")
def test_every_field_is_read():
    found = sandbox(
        mode="code",
        runtime="python",
        image="python:3.11-slim",
        session="reviews",
        timeout_seconds=300,
        max_stdout_bytes=1000,
        max_stderr_bytes=2000,
        allow_network=True,
        network={
            "enabled": True,
            "allow": ["example.org", "*.example.org", "127.0.0.1:8080"],
            "limits": {"connections": 8},
        },
        pip_packages=["pandas", "numpy==2.1.0", "uvicorn[standard]>=0.30,<1"],
        npm_packages=["lodash", "@types/node@20.1.0", "left-pad@^1.3.0"],
        profile="dev",
        limits={
            "cpu_millicores": 1500,
            "cpu_limit": 1.5,
            "memory_mb": 2048,
            "mem_limit_mb": 2048,
            "pids_limit": 64,
            "workspace_mb": 500,
            "max_file_size_bytes": 10_485_760,
            "max_files": 100,
            "max_stdout_bytes": 1000,
            "timeout_seconds": 900,
            "idle_timeout_seconds": 900,
            "exec_timeout_seconds": 300,
        },
    )
    assert found == AgentSandbox(
        mode="code",
        runtime="python",
        session="reviews",
        timeout_seconds=300.0,
        options=SandboxOptions(
            image="python:3.11-slim",
            network={
                "allow": ["example.org", "*.example.org", "127.0.0.1:8080"],
                "limits": {"connections": 8},
            },
            pip_packages=("pandas", "numpy==2.1.0", "uvicorn[standard]>=0.30,<1"),
            npm_packages=("lodash", "@types/node@20.1.0", "left-pad@^1.3.0"),
            profile="dev",
            limits={
                "cpu_millicores": 1500,
                "cpu_limit": 1.5,
                "memory_mb": 2048,
                "mem_limit_mb": 2048,
                "pids_limit": 64,
                "workspace_mb": 500,
                "max_file_size_bytes": 10_485_760,
                "max_files": 100,
                "max_stdout_bytes": 1000,
                "max_stderr_bytes": 2000,
                "exec_timeout_seconds": 300,
            },
            idle_timeout_seconds=900.0,
        ),
    )


def test_omitted_fields_have_their_defaults():
    assert sandbox() == AgentSandbox()
    assert sandbox(limits=None, network=None, session=None) == AgentSandbox()


def test_a_host_name_is_read_and_checked():
    assert sandbox(hostname="box").options.hostname == "box"
    with pytest.raises(InvalidAgent) as refused:
        parse_sandbox({"hostname": "a.b"})
    assert refused.value.message == "sandbox.hostname: 'a.b' is not a valid host name"


@pytest.mark.promise("P118")
def test_backend_is_read():
    assert sandbox(backend="docker").options.backend == "docker"
    with pytest.raises(InvalidAgent) as refused:
        parse_sandbox({"backend": ["docker", "local"]})
    assert refused.value.details["field"] == "sandbox.backend"


@pytest.mark.parametrize(
    ("fields", "network"),
    [
        ({"allow_network": False}, False),
        ({"allow_network": True}, True),
        ({"network": {"enabled": True}}, True),
        ({"network": {"allow": ["example.org"]}}, True),
        ({"network": {"allow": []}}, False),
        ({"network": "none"}, False),
    ],
)
def test_a_network_can_be_requested_in_three_ways(fields, network):
    assert (sandbox(**fields).options.network not in (None, "none")) is network


@pytest.mark.promise("P61")
@pytest.mark.parametrize(
    ("fields", "paths"),
    [
        ({"allow_network": True, "network": {"enabled": False}}, "allow_network network.enabled"),
        ({"network": {"enabled": False, "allow": ["a.org"]}}, "network.enabled network.allow"),
        ({"allow_network": True, "network": "none"}, "allow_network network.enabled"),
        (
            {"max_stdout_bytes": 1, "limits": {"max_stdout_bytes": 2}},
            "max_stdout_bytes limits.max_stdout_bytes",
        ),
        (
            {"timeout_seconds": 1, "limits": {"exec_timeout_seconds": 2}},
            "timeout_seconds limits.exec_timeout_seconds",
        ),
        (
            {"limits": {"timeout_seconds": 10, "idle_timeout_seconds": 20}},
            "limits.timeout_seconds limits.idle_timeout_seconds",
        ),
    ],
)
def test_two_different_spellings_of_a_field_are_a_contradiction(fields, paths):
    one, other = paths.split()
    expected = f"sandbox.{one} and sandbox.{other} contradict each other"
    assert refusal(fields).message == expected


def test_two_different_names_of_one_limit_are_a_contradiction():
    found = refusal({"limits": {"memory_mb": 512, "mem_limit_mb": 1024}})
    assert found.message == (
        "sandbox.limits: limits memory_mb and mem_limit_mb contradict each other"
    )


@pytest.mark.promise("P61")
def test_an_unknown_key_is_a_warning_with_the_nearest_spelling():
    found, warnings = parse_sandbox(
        {"runtme": "python", "limits": {"memroy_mb": 1}, "network": {"enabld": True}}
    )
    assert found == AgentSandbox()
    assert warnings == (
        "sandbox has no field 'runtme' (did you mean runtime?)",
        "sandbox.limits has no field 'memroy_mb' (did you mean memory_mb?)",
        "sandbox.network has no field 'enabld' (did you mean enabled?)",
    )


def test_many_unknown_keys_are_summed_up():
    _, warnings = parse_sandbox({f"x{n}": 1 for n in range(500)})
    assert len(warnings) == 51
    assert warnings[-1] == "sandbox has 500 unknown fields in all"


def test_a_session_in_compute_mode_is_a_warning():
    _, warnings = parse_sandbox({"session": "mine"})
    assert warnings == (
        "sandbox.session has no effect in compute mode: every run gets a new sandbox",
    )


@pytest.mark.promise("P61")
@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"mode": 3}, "sandbox.mode"),
        ({"mode": "codes"}, "sandbox.mode"),
        ({"runtime": ["python"]}, "sandbox.runtime"),
        ({"session": 1}, "sandbox.session"),
        ({"timeout_seconds": "5m"}, "sandbox.timeout_seconds"),
        ({"timeout_seconds": 0}, "sandbox.timeout_seconds"),
        ({"timeout_seconds": True}, "sandbox.timeout_seconds"),
        ({"allow_network": "yes"}, "sandbox.allow_network"),
        ({"network": True}, "sandbox.network"),
        ({"network": {"enabled": "on"}}, "sandbox.network.enabled"),
        ({"network": {"allow": ["a b"]}}, "sandbox.network.allow[0]"),
        ({"network": {"limits": {"connections": 0}}}, "sandbox.network.limits"),
        ({"network": {"allow": ["ok.org", "-x"]}}, "sandbox.network.allow[1]"),
        ({"pip_packages": "pandas"}, "sandbox.pip_packages"),
        ({"pip_packages": [1]}, "sandbox.pip_packages[0]"),
        ({"profile": "root"}, "sandbox.profile"),
        ({"limits": []}, "sandbox.limits"),
        ({"limits": {"memory_mb": "2g"}}, "sandbox.limits.memory_mb"),
        ({"limits": {"pids_limit": 1.5}}, "sandbox.limits.pids_limit"),
        ({"limits": {"timeout_seconds": "x"}}, "sandbox.limits.timeout_seconds"),
        ({"max_stderr_bytes": -1}, "sandbox.max_stderr_bytes"),
    ],
)
def test_a_wrong_value_names_the_path_to_its_field(fields, path):
    found = refusal(fields)
    assert found.message.startswith(path)
    assert found.details["field"] == path
    assert found.hint


@pytest.mark.parametrize("value", [None, True, 3, ["python"]])
def test_a_sandbox_field_is_a_string_or_a_mapping(value):
    assert refusal(value).message == "sandbox must be a runtime or a mapping"


BAD_IMAGES = ["--privileged", "-v", "-v /:/host", "../x", "a b", "a;b", "$(id)", "", "A", "x\n"]


@pytest.mark.promise("P61")
@pytest.mark.parametrize("name", BAD_IMAGES)
def test_an_image_name_is_never_an_option(name):
    for value in (name, {"image": name}, {"runtime": name}):
        with pytest.raises(InvalidAgent):
            parse_sandbox(value)


@pytest.mark.promise("P61")
@pytest.mark.parametrize(
    "package",
    [
        "-r requirements.txt",
        "--index-url=http://x",
        "-e .",
        ".",
        "./x",
        "/etc/x",
        "../x",
        "git+https://example.org/x",
        "https://example.org/x.whl",
        "x @ https://example.org/x.whl",
        "x; python_version<'3'",
        "x==1 --hash=y",
        "x.whl",
        "x.tar.gz",
        "x\n--index-url y",
        "file:x",
        "x y",
        "",
    ],
)
@pytest.mark.parametrize("field", ["pip_packages", "npm_packages"])
def test_a_package_is_a_name_and_a_version_and_nothing_else(field, package):
    with pytest.raises(InvalidAgent):
        parse_sandbox({field: [package]})


@pytest.mark.parametrize("package", ["npm:x@1", "user/repo", "x@file:..", "x@http://y", "_x", ".x"])
def test_npm_takes_no_other_sources(package):
    with pytest.raises(InvalidAgent):
        parse_sandbox({"npm_packages": [package]})


def test_spaces_around_a_version_are_accepted():
    assert sandbox(pip_packages=["pandas >= 2, < 3"]).options.pip_packages == ("pandas>=2,<3",)


@pytest.mark.promise("P61")
@pytest.mark.parametrize("name", ["a:b", "", " ", "../x", "x" * 101, "-x", "a b", "a/b", "ä"])
def test_a_session_name_cannot_collide_with_another_key(name):
    with pytest.raises(InvalidAgent):
        parse_sandbox({"mode": "code", "session": name})


def test_names_that_are_equal_when_joined_are_different_keys():
    one = RunContext("r", workflow_run_id="a_b", sandbox=AgentSandbox(mode="code", session="c"))
    other = RunContext("r", workflow_run_id="a", sandbox=AgentSandbox(mode="code", session="b_c"))
    assert str(one.session_key()) == "workflow:a_b:c"
    assert str(other.session_key()) == "workflow:a:b_c"


@pytest.mark.parametrize(
    ("value", "path", "meant"),
    [
        ("pyhton", "sandbox", "python"),
        ({"runtime": "nodejs"}, "sandbox.runtime", "node"),
        ({"runtime": "python3"}, "sandbox.runtime", "python"),
    ],
)
def test_a_misspelt_runtime_is_used_as_an_image_with_a_warning(value, path, meant):
    _, (warning,) = parse_sandbox(value)
    assert warning.startswith(f"{path} is interpreted as an image name: ")
    assert warning.endswith(f"(did you mean {meant}?)")


@pytest.mark.parametrize("value", ["python:3.12", "node", "shell", "python-data", "mine"])
def test_other_images_cause_no_warning(value):
    assert parse_sandbox({"runtime": value})[1] == ()


@pytest.mark.parametrize("value", [1, "all", ["nvidia.com/gpu=0"]])
def test_gpus_are_a_field_or_a_limit(value):
    wanted = tuple(value) if isinstance(value, list) else value
    assert sandbox(gpus=value).options.gpus == wanted
    assert sandbox(limits={"gpus": value}).options == sandbox(gpus=value).options
    assert sandbox(gpus=value, limits={"gpus": value}).options.gpus == wanted


def test_invalid_or_contradictory_gpus_are_refused_with_their_path():
    assert refusal({"gpus": -1}).details["field"] == "sandbox.gpus"
    assert refusal({"limits": {"gpus": "--all"}}).details["field"] == "sandbox.limits.gpus"
    assert "contradict" in refusal({"gpus": 1, "limits": {"gpus": 2}}).message
