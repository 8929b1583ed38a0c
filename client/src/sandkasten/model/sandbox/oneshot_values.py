"""One-shot compute: code in, answer and artifacts out; and its default timeout. Pure."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  (the codec reads the annotations)
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal

from sandkasten.errors import UnsupportedByBackend
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.access.tenancy import DEFAULT_TENANT
from sandkasten.model.commands.exec_values import ExecNetwork, Why  # noqa: TC001
from sandkasten.model.json_codec import BASE64, OPEN, FileName
from sandkasten.model.sandbox.sandbox_options import Number, SandboxOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten.model.sandbox.limits import Limits, Unenforced
    from sandkasten.model.sandbox.workspace import WorkspaceRequest


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A file of the tenant's file store, by its key."""

    key: str


@dataclass(frozen=True, slots=True)
class RunRequest:
    code: str | bytes
    runtime: str = "python"
    """python, node, bash or sh (linux and shell mean bash)."""
    args: tuple[str, ...] = ()
    files: Mapping[str, str | bytes | StoredKey] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Relative to the workspace, written before the code starts."""
    stdin: bytes | None = None
    timeout_seconds: float | None = None
    artifacts: tuple[str, ...] = ()
    """Globs relative to the workspace; `**` spans directories."""
    options: SandboxOptions = field(default_factory=SandboxOptions)
    """Options of the sandbox the code runs in. With a named workspace, what the code writes there
    stays.
    """
    tenant: str = DEFAULT_TENANT
    key_id: str | None = None
    agent_run_id: str | None = None
    """The run of the agent that asked for it, for log events."""
    agent: str | None = None
    """The installed agent that asks for it. Never set by a client."""


def oneshot_timeout(requested: float | None, limits: Limits) -> float:
    """Return the timeout of a one-shot in seconds: the requested one, or the operator's default."""
    return limits.exec_timeout_s if requested is None else requested


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that matched. Without `data`, `omitted_reason` has the reason."""

    path: FileName
    """Relative to the workspace, as the globs are."""
    size_bytes: int
    data: Annotated[bytes | None, BASE64] = field(default=None, metadata={"json": "content_base64"})
    omitted_reason: str | None = None


@dataclass(frozen=True, slots=True)
class RunResult:
    ok: bool
    runtime: str
    exit_code: int | None = None
    signal: int | None = None
    duration_ms: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    output: bytes = b""
    truncated: bool = False
    timed_out: bool = False
    oom_killed: bool = False
    artifacts: tuple[Artifact, ...] = ()
    limits: Mapping[str, Number] = field(default_factory=lambda: MappingProxyType({}))
    """The caps of this run, by public name."""
    image: str = ""
    sandbox_id: str = ""
    backend: str = ""
    error: str | None = None
    """One sentence when not ok."""
    why: Why | None = None
    warnings: tuple[str, ...] = ()
    network: ExecNetwork | None = None
    acquire_source: Annotated[Literal["pool", "cold"], OPEN] = "cold"
    acquire_detail: str = ""
    """Why it did not come from the warm pool."""


def check_run_only(
    backend: str, *, once: bool, profile: str, workspace: WorkspaceRequest | None
) -> None:
    """Raise UnsupportedByBackend for what a backend that only runs a command to its end lacks."""
    lacks = ""
    if not once:
        lacks = "cannot keep a sandbox: it runs one command to its end"
    elif profile == "dev":
        lacks = "has no profile dev"
    elif workspace is not None:
        lacks = "has no named workspaces"
    if lacks:
        raise UnsupportedByBackend(
            f"backend {backend} {lacks}",
            hint="use another backend (backend: local)"
            if once
            else "use it for one-shots (sandkasten run, the tool sandbox_run), and another backend "
            "for sessions (backend: local)",
            backend=backend,
        )


@dataclass(frozen=True, slots=True)
class RunOrder:
    """What a backend that `ports.RunsOnce` is asked to run."""

    sandbox_id: str
    spec: CellSpec
    script: Sequence[bytes | memoryview]
    """The frames that our runner plays inside; see `wire.script`."""
    seconds: float
    """How long the script takes at most, by its own deadlines."""
    max_answer_bytes: int
    after: str = ""
    """The `state` of an earlier order of this run, in whose files this one starts."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    answers: Sequence[bytes]
    """The frames with which the runner answered."""
    state: str = ""
    """Names the files that the run left, for another order of the same run."""
    unenforced: tuple[Unenforced, ...] = ()
    """Limits of the spec that did not hold."""
