"""The contestants of the comparison: how each is started, and what it is. Pure.

A contestant is a process of `benchmarks.peers.worker` in an environment of its own, because no two
frameworks agree on the versions of their packages. `build` names the class that the worker makes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

WARM: Final = "sandkasten"
COLD: Final = "sandkasten, cold"
HTTP: Final = "sandkasten over HTTP"
CLI: Final = "sandkasten CLI"
CLI_DAEMON: Final = "sandkasten CLI, daemon"
BARE: Final = "bare subprocess"
BWRAP: Final = "bwrap"
RUNC: Final = "runc"
DOCKER: Final = "docker SDK"
DOCKER_RUN: Final = "docker run"

Environment = Literal["ours", "llm-sandbox", "autogen", "swe-rex", "inspect"]
# Each is a requirement of a contestant, and a reason to leave it out where it is not there.
Need = Literal["daemon", "docker", "docker network", "bwrap", "runc"]


@dataclass(frozen=True, slots=True)
class Contestant:
    name: str
    build: str
    """`module:Class` below `benchmarks.peers`."""
    what: str
    """One line for readers of the results."""
    environment: Environment = "ours"
    distribution: str = ""
    """Whose version is shown; empty: that of a program or of this checkout."""
    needs: tuple[Need, ...] = ()
    ours: bool = False
    isolated: bool = True
    environ: dict[str, str] = field(default_factory=dict)
    warm_s: float = 0.0
    """It has a warm pool: each turn is taken once more before, and so much time is left between."""


CONTESTANTS: Final = (
    Contestant(
        *(WARM, "ours:Embedded", "in the calling process, with its warm pool"),
        ours=True,
        warm_s=0.3,
    ),
    Contestant(
        *(COLD, "ours:Embedded", "in the calling process, with nothing prepared"),
        ours=True,
        environ={"SANDKASTEN_POOL_ONESHOT_SPARES": "0"},
    ),
    Contestant(
        *(HTTP, "ours:OverHttp", "the Python SDK and a daemon on loopback"),
        needs=("daemon",),
        ours=True,
        warm_s=0.3,
    ),
    Contestant(*(CLI, "ours:CommandLine", "`sandkasten run`, without a daemon"), ours=True),
    Contestant(
        *(CLI_DAEMON, "ours:CommandLineOfDaemon", "`sandkasten run`, with a running daemon"),
        needs=("daemon",),
        ours=True,
        warm_s=0.3,
    ),
    Contestant(BARE, "bare:Bare", "`subprocess.run`, without any isolation", isolated=False),
    Contestant(
        *(BWRAP, "bwrap:Bwrap", "bubblewrap, started again for each command; no limits"),
        needs=("bwrap",),
    ),
    Contestant(
        *(RUNC, "runc:RuncPeer", "runc's command line on an unpacked root"), needs=("runc",)
    ),
    Contestant(
        *(DOCKER, "docker:DockerPeer", "the Python SDK of Docker"),
        distribution="docker",
        needs=("docker",),
    ),
    Contestant(
        *(DOCKER_RUN, "docker:DockerRun", "`docker run --rm`, the command line"),
        needs=("docker",),
    ),
    Contestant(
        *("llm-sandbox (docker)", "llm_sandbox:OnDocker", "llm-sandbox with its Docker backend"),
        environment="llm-sandbox",
        distribution="llm-sandbox",
        needs=("docker",),
    ),
    Contestant(
        *("llm-sandbox (bwrap)", "llm_sandbox:OnBubblewrap", "its bubblewrap backend"),
        environment="llm-sandbox",
        distribution="llm-sandbox",
        needs=("bwrap",),
    ),
    Contestant(
        *("AutoGen (docker)", "autogen:OnDocker", "DockerCommandLineCodeExecutor"),
        environment="autogen",
        distribution="autogen-ext",
        needs=("docker",),
    ),
    Contestant(
        *("AutoGen (local)", "autogen:Local", "LocalCommandLineCodeExecutor: no isolation"),
        isolated=False,
        environment="autogen",
        distribution="autogen-ext",
    ),
    Contestant(
        *("SWE-ReX (docker)", "swe_rex:OnDocker", "DockerDeployment"),
        environment="swe-rex",
        distribution="swe-rex",
        needs=("docker", "docker network"),
    ),
    Contestant(
        *("SWE-ReX (local)", "swe_rex:Local", "LocalDeployment: no isolation"),
        isolated=False,
        environment="swe-rex",
        distribution="swe-rex",
    ),
    Contestant(
        *("inspect_ai (docker)", "inspect_ai:OnDocker", "its Docker sandbox, by Compose"),
        environment="inspect",
        distribution="inspect-ai",
        needs=("docker",),
    ),
    Contestant(
        *("inspect_ai (local)", "inspect_ai:Local", "its local sandbox: no isolation"),
        isolated=False,
        environment="inspect",
        distribution="inspect-ai",
    ),
)
NAMES: Final = tuple(contestant.name for contestant in CONTESTANTS)
OURS: Final = frozenset(contestant.name for contestant in CONTESTANTS if contestant.ours)
OPEN: Final = frozenset(contestant.name for contestant in CONTESTANTS if not contestant.isolated)
