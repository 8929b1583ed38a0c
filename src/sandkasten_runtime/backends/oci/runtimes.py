"""The supported runtimes: their paths, versions and command lines.

The meaning of a version is a pure function of its number. Whether a runtime works is decided by
`selftest`, which creates a sandbox with it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Literal

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.readiness import Requirement
from sandkasten_runtime.backends.oci.oci_config import READY_FD

if TYPE_CHECKING:
    from sandkasten_runtime.backends.oci.oci_config import Kind

Name = Literal["runc", "crun", "runsc"]
Platform = Literal["systrap", "ptrace"]
# The supported one first; the older one runs where the newer does not.
PLATFORMS: tuple[Platform, ...] = ("systrap", "ptrace")

PID_FILE = "pid"
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"
_PACKAGES: dict[Name, str] = {
    "runc": "apt-get install runc",
    "crun": "apt-get install crun",
    "runsc": "install runsc (gVisor) of 2024 or newer: https://gvisor.dev/docs/user_guide/install/",
}
# The release that fixes all three container escapes of 2025.
_RUNC_SAFE = (1, 2, 8)
RELEASE = "runc release"
_RUNC_CVES = "CVE-2024-21626, CVE-2025-31133, CVE-2025-52565, CVE-2025-52881"
_NUMBER = re.compile(r"(\d+(?:\.\d+)+)")


def kind_of(name: Name) -> Kind:
    return "gvisor" if name == "runsc" else "runc"


def find(name: Name) -> str | None:
    """Find a program on the fixed system path: a program that runs as root is not looked up in
    the caller's PATH.
    """
    return shutil.which(name, path=_PATH)


@dataclass(frozen=True, slots=True)
class RuntimeVersion:
    """The version string of the program and its number; `number` is empty if it reports none."""

    text: str
    number: tuple[int, ...] = ()


def parse_version(output: str) -> RuntimeVersion:
    """Parse the first line: `runc version 1.1.5+ds1`, `runsc version 0.0~20240729.0`."""
    first = output.strip().splitlines()[0].strip() if output.strip() else ""
    text = first.split(" version ", 1)[-1][:80]
    match = _NUMBER.search(text.partition("+")[0].partition("~")[0])
    return RuntimeVersion(text, tuple(int(p) for p in match[1].split(".")) if match else ())


def ask_version(program: str) -> RuntimeVersion:
    """Run the program for its version. Raise OSError or SubprocessError if it does not run."""
    done = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=10, check=True, env={}
    )
    return parse_version(done.stdout)


def judge_runc(version: RuntimeVersion, *, strict: bool) -> Requirement:
    """Judge whether it has known escapes: a warning, or a refusal if `strict`."""
    ok = version.number >= _RUNC_SAFE
    if ok:
        return Requirement(RELEASE, True, version.text, required=strict)
    return Requirement(
        RELEASE,
        False,
        f"{version.text} is before 1.2.8, the release without {_RUNC_CVES}; "
        "distributions patch older ones in place",
        "install the newest security update (Debian: apt-get install --only-upgrade runc, and look "
        "for these names in its changelog) or runc 1.2.8; oci.strict: true refuses older ones",
        required=strict,
    )


def judge_crun(*, hybrid: bool) -> Requirement:
    if not hybrid:
        return Requirement("crun on these cgroups", True, "one hierarchy")
    return Requirement(
        "crun on these cgroups",
        False,
        "crun does not work with hybrid cgroups (v1 controllers beside a v2 tree)",
        "use runc, or boot with systemd.unified_cgroup_hierarchy=1",
    )


def missing(name: Name) -> Requirement:
    return Requirement(name, False, "not installed", _PACKAGES[name])


def command(
    name: Name,
    program: str,
    sandbox_id: str,
    bundle: str,
    platform: Platform | None,
    *,
    network: bool = False,
) -> list[str]:
    """Return the argument vector that creates the sandbox. All it stores is below `bundle`."""
    start = ["run", "--detach", "--bundle", bundle, "--pid-file", f"{bundle}/{PID_FILE}"]
    state = ["--root", f"{bundle}/state"]
    if name == "runsc":
        return [
            program, *state,
            "--platform", platform or PLATFORMS[0],
            # It is already in its group; a group that it creates would be a second one.
            "--ignore-cgroups",
            # Its own stack on the device of the namespace, or no network.
            "--network", "sandbox" if network else "none",
            # The runner binds its socket, and programs inside bind theirs.
            "--host-uds", "all",
            # Writes go to the volume and its quota, not to a file of gVisor's own.
            "--overlay2", "none",
            *start,
            "--pass-fd", f"{READY_FD}:{READY_FD}",
            sandbox_id,
        ]  # fmt: skip
    return [program, *state, *start, "--preserve-fds", "2", sandbox_id]
