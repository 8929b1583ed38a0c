"""Every row of the benchmark: its unit, its goals, and why a peer may be ahead in it. Pure.

A goal compares a value of ours with that of a peer in the same run, or with a number. `--check`
fails if a goal that is a promise is missed; other goals are only shown with their result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from benchmarks.peers.contestants import (
    BARE,
    BWRAP,
    CLI,
    CLI_DAEMON,
    COLD,
    DOCKER,
    WARM,
)

if TYPE_CHECKING:
    from benchmarks.samples import Measured

# promise: P48, P72, P73, P102
Unit = Literal["ms", "/s", "MiB"]
OURS: Final = WARM


@dataclass(frozen=True, slots=True)
class Goal:
    bound: float
    """A ratio to the peer's value; with `plus`, a difference from it; without a peer, a value. Our
    value may be at most this; in rows of the unit `/s`, at least this.
    """
    against: str = ""
    of: str = OURS
    plus: bool = False
    at: Literal["p50", "p95"] = "p50"
    promise: bool = False
    why_missed: str = ""
    """What takes the time, shown if the goal is missed."""


@dataclass(frozen=True, slots=True)
class Row:
    operation: str
    section: str
    goals: tuple[Goal, ...] = ()
    unit: Unit = "ms"
    lead: str = OURS
    """Our contestant that the others are compared with."""
    plot: str = ""
    """The name of its plot; empty for a row outside the comparison, which has none."""


@dataclass(frozen=True, slots=True)
class Verdict:
    operation: str
    goal: str
    measured: str
    ok: bool | None
    """None if the run did not measure it."""
    promise: bool
    why_missed: str = ""


# ---- the comparison

ONESHOT: Final = "one-shot print(1+1)"
COMMAND_LINE: Final = "one-shot by command line"
CREATE: Final = "create"
EXEC: Final = "exec true (list)"
DESTROY: Final = "destroy"
RATE: Final = "commands per second, 8 sandboxes"
FIRST: Final = "create to first command, one after another"
STAGGERED: Final = "create to first command, staggered"
BURST: Final = "create to first command, burst"


def _promise(bound: float, against: str, **options: str) -> Goal:
    return Goal(bound, against, promise=True, **options)  # type: ignore[arg-type]


# What takes the time, as measured part by part.
_CLAIM: Final = (
    "claiming a warm sandbox takes a lock, writes two rows to disk and sets a new lease at the "
    "runner"
)
_MAKE: Final = "a launcher, bubblewrap and the runner start one after another"
_SPAWN: Final = (
    "each command has to wake up the engine and the runner before its program starts, and takes "
    "0.4 ms of Python in the engine"
)
_CALL: Final = (
    "a call takes 0.2 ms of Python, two thread switches and a request to the runner, which opens "
    "the file inside the sandbox"
)
_AS_BARE: Final = "this machine starts no more processes per second without a sandbox either"
_POOL: Final = (
    "the warm pool keeps at most four sandboxes of a kind ready; the others are created on demand, "
    "two at a time"
)
_IMPORT: Final = "importing the engine takes 0.2 s of processor time"
_END: Final = (
    "its processes must have ended, six control groups are removed and two rows are written"
)


COMPARISON: Final = (
    Row(
        *(ONESHOT, "oneshots"),
        (
            Goal(0.5, BARE, why_missed=f"{_CLAIM}; Python takes 6 ms, and the removal 3 ms"),
            Goal(1.5, BARE, of=COLD, why_missed=f"{_MAKE}, and then Python"),
            *(_promise(2.5, BARE), _promise(1 / 10, DOCKER)),
        ),
        plot="oneshot",
    ),
    Row(
        *(COMMAND_LINE, "oneshots"),
        (Goal(120, of=CLI, why_missed=_IMPORT), Goal(80, of=CLI_DAEMON)),
        lead=CLI,
        plot="command-line",
    ),
    Row(
        *(CREATE, "sessions"),
        (
            *(Goal(2, why_missed=_CLAIM), Goal(15, of=COLD, why_missed=_MAKE)),
            Goal(1 / 100, DOCKER, why_missed=_CLAIM),
            Goal(1 / 20, DOCKER, of=COLD, why_missed=_MAKE),
            _promise(1 / 12, DOCKER),
        ),
        plot="create",
    ),
    Row(
        *(EXEC, "sessions"),
        (Goal(1.2, BARE, why_missed=_SPAWN), _promise(1 / 30, DOCKER)),
        plot="exec",
    ),
    Row(
        *(DESTROY, "sessions"),
        (Goal(3, why_missed=_END), _promise(1 / 20, DOCKER)),
        plot="destroy",
    ),
    *(
        Row(
            *(f"{verb} {size}", "files"),
            (Goal(bound, BARE, why_missed=_CALL),),
            plot=f"{verb}-{size.replace(' ', '-')}",
        )
        for verb, bound in (("read", 1.5), ("write", 1.0))
        for size in ("1 MB", "50 MB")
    ),
    Row(
        *(RATE, "rate"),
        (Goal(1.0, BARE, why_missed=_SPAWN), Goal(50, DOCKER, why_missed=_AS_BARE)),
        unit="/s",
        plot="rate",
    ),
    Row(FIRST, "sessions", (Goal(1 / 20, DOCKER),), plot="first-sequential"),
    Row(STAGGERED, "first", (Goal(1 / 20, DOCKER),), plot="first-staggered"),
    Row(BURST, "first", (Goal(1 / 20, DOCKER, why_missed=_POOL),), plot="first-burst"),
)

_NO_SANDBOX: Final = "it runs code on the host, without a sandbox"
_ONE_PROCESS: Final = (
    "it starts a process of the host; ours starts one in a sandbox with limits, keeps its output "
    "and records its end"
)
_HOST_FILE: Final = (
    "it uses a file of the host; ours is opened inside the sandbox, as its user, so that no path "
    "of the sandbox is followed outside"
)
_DIRECTORY: Final = "it creates a directory and starts nothing before the first command"
_NOTHING_ENDS: Final = "it removes a directory and has no process to end"
_SHARED_FILE: Final = "it uses a directory of the host directly and checks no path"
_LOCAL: Final = ("AutoGen (local)", "SWE-ReX (local)", "inspect_ai (local)")
_SHARERS: Final = (BWRAP, "AutoGen (local)", "AutoGen (docker)", "llm-sandbox (bwrap)")
FILES: Final = tuple(f"{verb} {size}" for verb in ("read", "write") for size in ("1 MB", "50 MB"))
_LIGHTER: Final = {
    BWRAP: (
        "its sandbox lives for one command, without limits, a system-call filter, an id range of "
        "its own or a record of what ran"
    ),
    "llm-sandbox (bwrap)": (
        "its sandbox lives for one command, without limits for all of its processes, an id range "
        "of its own or a record of what ran"
    ),
}
REASONS: Final[dict[tuple[str, str], str]] = {
    **{(row.operation, BARE): _ONE_PROCESS for row in COMPARISON},
    **{(row.operation, peer): _NO_SANDBOX for row in COMPARISON for peer in _LOCAL},
    **{(operation, BARE): _HOST_FILE for operation in FILES},
    **{(operation, peer): _SHARED_FILE for operation in FILES for peer in _SHARERS},
    **{(CREATE, peer): _DIRECTORY for peer in _LIGHTER},
    **{(DESTROY, peer): _NOTHING_ENDS for peer in _LIGHTER},
    **{
        (operation, peer): reason
        for operation in (ONESHOT, FIRST, STAGGERED, BURST)
        for peer, reason in _LIGHTER.items()
    },
}
"""Why a peer may be ahead in a row. A test fails if a peer is ahead without a reason."""

# ---- ours alone, each against the same work without Sandkasten, or without the part in question


def _promised(section: str, operation: str, peer: str, bound: float, *goals: Goal) -> Row:
    """Return a row with a promise against one peer, and stricter goals."""
    return Row(operation, section, (*goals, _promise(bound, peer)))


def _on_docker(mode: str) -> tuple[Row, ...]:
    """Return the rows of a sandbox in a container, against the SDK on the same Docker Engine.
    Neither has a network.

    In the mode `volume` each byte of a file goes through the engine, the pipes of its supervisor
    and our relay, while the SDK's archive goes from the engine to its disk. So the bound for large
    files is wider.
    """
    large = 1.0 if mode == "bind" else 2.0
    rules = (
        (f"exec true on docker (shell, {mode})", 1 / 5),
        (f"exec true on docker (argv, {mode})", 1 / 5),
        (f"create on docker ({mode})", 1.3),
        (f"destroy on docker ({mode})", 3.0, Goal(1.5, "docker", why_missed=_UNMOUNT)),
        (f"write 1 MB on docker ({mode})", 1.0),
        (f"read 1 MB on docker ({mode})", 1.0),
        (f"write 50 MB on docker ({mode})", large),
        (f"read 50 MB on docker ({mode})", large),
    )
    return tuple(_promised("docker", operation, "docker", *rule) for operation, *rule in rules)


def _on_kubernetes() -> tuple[Row, ...]:
    """Return the rows of a sandbox that is a Pod, against bare Pods on the same two nodes."""
    created = (
        Goal(1.5, _BARE_POD, why_missed=_VOLUMES),
        Goal(1.5, _POD_WITH_VOLUME, why_missed=_SECOND),
    )
    ran = (
        Goal(5, why_missed=_BUSY_NODES),
        _promise(1 / 15, "pods/exec"),
    )
    many = (Goal(1.5, _POD_WITH_VOLUME, why_missed=_TWO_CONTAINERS),)
    rules = (
        ("create on Kubernetes", created),
        ("exec true on Kubernetes (shell)", ran),
        ("exec true on Kubernetes (argv)", ran),
        ("destroy on Kubernetes", (Goal(1.5, _POD_WITH_VOLUME, why_missed=_CLEARED),)),
        ("create on Kubernetes, many at once", many),
        ("the last of many on Kubernetes", many),
    )
    return tuple(Row(operation, "cluster", goals) for operation, goals in rules)


_DIGEST: Final = (
    "a processor without SHA instructions takes 0.9 s for the digest of the 200 MB, which tar does "
    "not compute"
)
_BUSY_NODES: Final = "the processors of this machine also run the cluster"
_CLEARED: Final = (
    "its processes end within 0.3 s; then the kubelet removes two containers and eight volumes, "
    "instead of one each"
)
_TWO_CONTAINERS: Final = (
    "two containers and a hook are started for each, and the processors are busy with that"
)
_UNMOUNT: Final = (
    "the Docker Engine takes most of the time, because our container has more mounts; after that, "
    "the file system of the workspace is unmounted (bind), or two volumes are removed (volume)"
)
_BARE_POD: Final = "bare Pod"
_POD_WITH_VOLUME: Final = "bare Pod with a volume"
_VOLUMES: Final = (
    "a kubelet looks every 0.3 s whether volumes are mounted, and a bare Pod has none to wait for; "
    "then a second container and a hook that copies the runner"
)
_SECOND: Final = "a second container and a hook that copies the runner are started"
_GVISOR: Final = "gVisor takes 6 to 12 ms to start a process; `true` in a shell needs none"
_AIOHTTP: Final = "aiohttp and the conversion of values take 0.5 ms of Python for each request"
_HANDSHAKE: Final = (
    "a second handshake, two more sends and two more wake-ups take 60 to 80 microseconds on "
    "loopback, and a direct connection takes 40"
)
_CONTAINED: Final = "daemon in a container"
_CONTAINED_BOUND_MS: Final = 500.0
_HTTP: Final = "exec true, one session (argv)"
IDLE: Final = "idle session (machine)"
IDLE_CGROUP: Final = "idle session (cgroup)"
NETWORKED: Final = "a sandbox with a network (cgroup)"
GROWTH: Final = "growth of the caller under output"
DOWNLOAD: Final = "download of 1 GB through a network"
CONNECT: Final = "connect through a network"

ALONE: Final = (
    Row("import of an image", "images", (_promise(1.5, "tar", why_missed=_DIGEST),)),
    _promised("images", "create on an image", "host image", 1.5),
    _promised(
        *("gvisor", "exec true on gVisor (argv)", "runsc", 1.0),
        Goal(1 / 3, "runsc", why_missed=_GVISOR),
    ),
    _promised("gvisor", "exec true on gVisor (shell)", "runsc", 1 / 3),
    *(row for mode in ("bind", "volume") for row in _on_docker(mode)),
    *_on_kubernetes(),
    Row(
        *(CONNECT, "network"),
        (
            Goal(2.0, "direct", why_missed=_HANDSHAKE),
            *(_promise(4.0, "direct"), _promise(1.5, "pasta")),
        ),
    ),
    Row(
        *(DOWNLOAD, "network"),
        (
            Goal(2.0, "direct", why_missed="each byte goes through two connections and a pipe"),
            *(_promise(3.0, "direct"), _promise(1.0, "pasta"), _promise(1.0, "slirp4netns")),
        ),
    ),
    _promised("network", "create with a network", "no network", 1.3),
    Row(NETWORKED, "network", (Goal(4, promise=True),), unit="MiB"),
    # Wide bounds, for a machine with much other work. A call takes about a third of a millisecond
    # of processor time more than the engine's: it reads a row of the ledger and checks the
    # arguments against their schema.
    _promised("agents", "sandbox_exec true", "engine", 4.0),
    _promised("agents", "sandbox_exec true over MCP", "engine", 10.0),
    _promised("agents", "sandbox_exec true over HTTP", "HTTP exec", 3.0),
    Row("sandbox_run python", "agents", (_promise(3.0, "engine"), _promise(1 / 4, "docker"))),
    _promised("agents", "a tool call in an agent's loop", "tool call", 5.0),
    _promised("packages", "create with packages, fetched before", "no packages", 2.5),
    *(
        _promised(
            "expressions", f"expression that looks at {kilobytes} kB", "cel in process", bound
        )
        for kilobytes, bound in ((1, 15.0), (100, 20.0), (1000, 6.0))
    ),
    _promised("code", "run_code 1+1 over HTTP, warm", "ipykernel", 1.5),
    _promised("code", "first run_code in a sandbox", "ipykernel", 2.0),
    *(
        Row(
            *(operation, "interpreters"),
            (Goal(bound, BARE, why_missed=_CLAIM),),
            lead="sandkasten",
        )
        for operation, bound in (
            ("one-shot print(1+1), interpreter started", 0.5),
            ("one-shot import pandas, imported before", 0.1),
        )
    ),
    _promised("traces", "exec true over HTTP, traced", "without spans", 1.1),
    Row(
        *(_HTTP, "http"),
        (
            Goal(1.0, OURS, of="raw HTTP", plus=True, promise=True),
            Goal(0.5, "raw HTTP", of="SDK over HTTP", plus=True, why_missed=_AIOHTTP),
        ),
    ),
    *(
        Row(
            *(f"{verb}, {_CONTAINED}", "contained"),
            tuple(
                Goal(_CONTAINED_BOUND_MS, of=of, at="p95", promise=True)
                for of in (OURS, "sandkasten, volumes")
            ),
        )
        for verb in ("write 4 KB", "read 4 KB", "list a directory", "delete a file")
    ),
    Row(IDLE, "idle", (Goal(2, promise=True),), unit="MiB"),
    Row(IDLE_CGROUP, "idle", unit="MiB"),
    # Buffers for output may take some memory of the caller, but no more for more output.
    Row(
        *(GROWTH, "output"),
        tuple(Goal(24, of=f"sandkasten {how}", promise=True) for how in ("exec", "stream")),
        unit="MiB",
    ),
)
ROWS: Final = (*COMPARISON, *ALONE)


def by_operation(operation: str) -> Row:
    """Return the row of an operation; without one, a row in milliseconds that has no goals."""
    return next((row for row in ROWS if row.operation == operation), Row(operation, ""))


# ---- verdicts


def goal_text(goal: Goal, unit: Unit) -> str:
    """Return a goal as the report shows it."""
    sign = "≥" if unit == "/s" else "≤"
    shown = goal.bound if goal.bound >= 1 or not goal.against or goal.plus else 1 / goal.bound
    number = f"{shown:g}"
    if goal.plus:
        words = f"{sign} {number} {unit} more than {goal.against}"
    elif not goal.against:
        words = f"{sign} {number} {unit}"
    elif goal.bound < 1:
        words = f"{sign} 1/{number} of {goal.against}"
    else:
        words = f"{sign} {number} × {goal.against}"
    return words + (f" ({goal.at})" if goal.at != "p50" else "")


def times(ratio: float) -> str:
    """Return a ratio with two significant digits, a small one as a fraction."""
    if ratio >= 1:
        return f"{ratio:.0f} ×" if ratio >= 10 else f"{ratio:.2f} ×"
    return f"1/{1 / ratio:.0f}" if ratio < 0.1 else f"{ratio:.2f} ×"


def judge(row: Row, goal: Goal, measured: Measured) -> Verdict:
    peers = measured.get(row.operation, {})
    words = f"{goal.of}: {goal_text(goal, row.unit)}"
    own = getattr(peers.get(goal.of), goal.at, None)
    other = getattr(peers.get(goal.against), goal.at, None) if goal.against else 0.0
    if own is None or other is None:
        return Verdict(row.operation, words, "not measured", None, goal.promise)
    value = f"{amount(own)} {row.unit}"
    if not goal.against:
        got, shown = own, value
    elif goal.plus:
        got = own - other
        shown = f"{got:.2f} {row.unit} ({value} and {amount(other)} {row.unit})"
    else:
        got = own / other
        shown = f"{times(got)} ({value} and {amount(other)} {row.unit})"
    ok = got >= goal.bound if row.unit == "/s" else got <= goal.bound
    return Verdict(row.operation, words, shown, ok, goal.promise, goal.why_missed)


def amount(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def verdicts(measured: Measured, sections: set[str]) -> list[Verdict]:
    """Judge every goal of the sections that ran."""
    return [
        judge(row, goal, measured) for row in ROWS if row.section in sections for goal in row.goals
    ]


def peers_ahead(row: Row, measured: Measured, own_names: frozenset[str]) -> dict[str, str]:
    """Return the peers that are ahead of our lead in a row, each with the reason."""
    peers = measured.get(row.operation, {})
    lead = peers.get(row.lead)
    if lead is None or lead.p50 is None:
        return {}
    ahead = {
        peer
        for peer, summary in peers.items()
        if peer not in own_names
        and summary.p50 is not None
        and (summary.p50 > lead.p50 if row.unit == "/s" else summary.p50 < lead.p50)
    }
    return {peer: REASONS.get((row.operation, peer), "") for peer in peers if peer in ahead}
