"""Runtime versions, and how a runtime is called."""

from __future__ import annotations

import subprocess

import pytest

from sandkasten_runtime.backends.oci import runtimes
from sandkasten_runtime.backends.oci.runtimes import (
    RuntimeVersion,
    judge_crun,
    judge_runc,
    parse_version,
)

# As the programs of Debian 12 and of its backports say it.
RUNC_1_1_5 = "runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1\nspec: 1.0.2-dev\n"
CRUN_1_8_1 = "crun version 1.8.1\ncommit: f8a096be060b22ccd3d5f3ebe44108517fbf6c30\n"
RUNSC_2024 = "runsc version 0.0~20240729.0\nspec: 1.0.2-dev\n"


@pytest.mark.parametrize(
    ("said", "version"),
    [
        (RUNC_1_1_5, RuntimeVersion("1.1.5+ds1", (1, 1, 5))),
        (CRUN_1_8_1, RuntimeVersion("1.8.1", (1, 8, 1))),
        (RUNSC_2024, RuntimeVersion("0.0~20240729.0", (0, 0))),
        ("runc version 1.2.8\n", RuntimeVersion("1.2.8", (1, 2, 8))),
        ("runc version 1.3.0-rc.1\n", RuntimeVersion("1.3.0-rc.1", (1, 3, 0))),
        ("something else", RuntimeVersion("something else", ())),
        ("", RuntimeVersion("", ())),
    ],
)
def test_a_runtime_version_is_parsed(said: str, version: RuntimeVersion):
    assert parse_version(said) == version


@pytest.mark.parametrize("number", [(1, 2, 8), (1, 3, 0), (2, 0, 0)])
def test_a_runc_without_known_escapes_causes_no_warning(number):
    assert judge_runc(RuntimeVersion("x", number), strict=True).ok


@pytest.mark.promise("P05")
@pytest.mark.parametrize("number", [(1, 1, 5), (1, 2, 7), ()])
def test_an_older_runc_is_reported_with_its_vulnerabilities_and_refused_only_with_strict(number):
    line = judge_runc(RuntimeVersion("old", number), strict=False)
    assert (line.ok, line.required) == (False, False)
    for name in ("CVE-2024-21626", "CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"):
        assert name in line.state
    assert "Debian" in line.remedy
    assert judge_runc(RuntimeVersion("old", number), strict=True).required


@pytest.mark.promise("P05")
def test_crun_is_refused_only_on_hybrid_cgroups():
    assert judge_crun(hybrid=False).ok
    refused = judge_crun(hybrid=True)
    assert (refused.ok, refused.required) == (False, True)
    assert "runc" in refused.remedy


def test_the_state_of_a_runtime_is_inside_its_bundle():
    for name in ("runc", "crun", "runsc"):
        argv = runtimes.command(name, f"/usr/bin/{name}", "sbx_x", "/mnt/bundle", None)
        assert argv[argv.index("--root") + 1] == "/mnt/bundle/state"
        assert argv[argv.index("--pid-file") + 1].startswith("/mnt/bundle/")
        assert argv[-1] == "sbx_x"


def test_gvisor_runs_without_network_and_own_cgroup():
    argv = runtimes.command("runsc", "/usr/bin/runsc", "sbx_x", "/mnt/bundle", "ptrace")
    assert argv[argv.index("--network") + 1] == "none"
    assert argv[argv.index("--platform") + 1] == "ptrace"
    assert "--ignore-cgroups" in argv


def test_gvisor_uses_its_own_stack_for_a_network():
    argv = runtimes.command("runsc", "runsc", "sbx_x", "/mnt/bundle", None, network=True)
    assert argv[argv.index("--network") + 1] == "sandbox"


def test_the_installed_runtimes_report_a_version():
    for name in ("runc", "runsc"):
        program = runtimes.find(name)
        assert program is not None, subprocess.list2cmdline(["missing", name])
        assert runtimes.ask_version(program).text
