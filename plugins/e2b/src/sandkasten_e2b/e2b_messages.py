"""The requests of E2B's SDKs, by the names that they have on the wire.

Unknown fields are ignored, as in protobuf: a newer SDK may send more. A field that would change
what a sandbox does and has no counterpart here is refused, not ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field

from sandkasten_server.api.route import Body, Query

DEFAULT_TIMEOUT_S: Final = 300
_MAX_TIMEOUT_S: Final = 10**8
_MAX_PATH: Final = 8192
# The length of an SDK's own identifiers and of a signature.
_SHORT: Final = 512
Seconds = Annotated[int, Field(ge=0, le=_MAX_TIMEOUT_S)]
Path = Annotated[str, Field(max_length=_MAX_PATH)]


class Message(Body):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False, frozen=True)


class LooseQuery(Query):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, frozen=True)


class Network(Message):
    allowOut: list[str] | None = None
    denyOut: list[str] | None = None
    allow_internet_access: bool | None = None
    allowPublicTraffic: bool | None = None
    dnsServers: list[str] | None = None
    egressProxy: Any = None
    maskRequestHost: str | None = None
    rules: Any = None


class AutoResume(Message):
    enabled: bool = False


class Create(Message):
    templateID: str = "base"
    timeout: Seconds = DEFAULT_TIMEOUT_S
    metadata: dict[str, str] | None = None
    envVars: dict[str, str] | None = None
    autoPause: bool | None = None
    autoPauseMemory: bool | None = None
    autoResume: AutoResume | None = None
    allow_internet_access: bool | None = None
    network: Network | None = None
    iam: Any = None
    volumeMounts: list[Any] | None = None


class Timeout(Message):
    timeout: Seconds = DEFAULT_TIMEOUT_S


class Pause(Message):
    memory: bool | None = None


class Refresh(Message):
    duration: Seconds = DEFAULT_TIMEOUT_S


class NewSnapshot(Message):
    name: str | None = Field(None, max_length=_SHORT)


class Fork(Message):
    timeout: Seconds = DEFAULT_TIMEOUT_S
    count: int = Field(1, ge=1, le=100)


class SnapshotQuery(LooseQuery):
    sandboxID: str | None = Field(None, max_length=_SHORT)
    name: str | None = Field(None, max_length=_SHORT)
    limit: int = Field(100, ge=1, le=1000)
    nextToken: str | None = Field(None, max_length=_SHORT)


class ListQuery(LooseQuery):
    metadata: str | None = Field(None, max_length=_MAX_PATH)
    state: str | None = Field(None, max_length=_SHORT)
    startedAfter: str | None = Field(None, max_length=_SHORT)
    template: str | None = Field(None, max_length=_SHORT)
    order: str | None = Field(None, max_length=_SHORT)
    limit: int = Field(100, ge=1, le=1000)
    nextToken: str | None = Field(None, max_length=_SHORT)


class MetricsQuery(LooseQuery):
    start: int | None = None
    end: int | None = None


class FileQuery(LooseQuery):
    path: Path | None = None
    username: str | None = Field(None, max_length=_SHORT)
    signature: str | None = Field(None, max_length=_SHORT)
    signature_expiration: str | None = Field(None, max_length=_SHORT)


# ---- process.Process


class ProcessConfig(Message):
    cmd: str
    args: list[str] = Field(default_factory=list)
    envs: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None


class PtySize(Message):
    cols: int = 80
    rows: int = 24


class PtyField(Message):
    size: PtySize = Field(default_factory=PtySize)


class Start(Message):
    process: ProcessConfig
    pty: PtyField | None = None
    tag: str | None = Field(None, max_length=_SHORT)
    stdin: bool | None = None


class Selector(Message):
    pid: int | None = Field(None, ge=0, le=2**32 - 1)
    tag: str | None = Field(None, max_length=_SHORT)


class Selected(Message):
    """The request of Connect and CloseStdin."""

    process: Selector


class Update(Selected):
    pty: PtyField | None = None


class ProcessInput(Message):
    stdin: str | None = None
    pty: str | None = None


class SendInput(Selected):
    input: ProcessInput


class SendSignal(Selected):
    signal: str | int


class InputStart(Message):
    process: Selector


class InputData(Message):
    input: ProcessInput


class StreamInput(Message):
    start: InputStart | None = None
    data: InputData | None = None


# ---- filesystem.Filesystem


class OnePath(Message):
    """The request of Stat, MakeDir and Remove."""

    path: Path = ""


class Move(Message):
    source: Path = ""
    destination: Path = ""


class ListDir(OnePath):
    depth: int = Field(1, ge=0, le=1000)


class WatchDir(OnePath):
    recursive: bool = False
    includeEntry: bool = False


class Watcher(Message):
    watcherId: str = Field(max_length=_SHORT)


# ---- the code interpreter


class Execute(Message):
    code: str
    context_id: str | None = Field(None, max_length=_SHORT)
    language: str | None = Field(None, max_length=_SHORT)
    env_vars: dict[str, str] | None = None


class NewContext(Message):
    cwd: Path | None = None
    language: str | None = Field(None, max_length=_SHORT)
