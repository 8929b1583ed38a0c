"""The plan of a build, as values: stages of steps, from a recipe or a Dockerfile. Pure."""

from __future__ import annotations

import re
from dataclasses import field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, Protocol

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.network_policy import CLOSED, NetworkPolicy
from sandkasten_build.builder.dockerignore import NOTHING, DockerIgnore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten_runtime.images.image_config import ImageConfig

MAX_STEPS: Final = 100
USER: Final = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?\Z"
)
# A sandbox mounts its own there, which hides the image's content.
HIDDEN: Final = ("/proc", "/dev", "/sys", "/run", "/tmp", "/var/tmp", "/workspace", "/work")  # noqa: S108


def is_hidden(path: str) -> bool:
    """Return whether a sandbox has its own directory at an absolute path, or above it."""
    return any(f"{path}/".startswith(f"{hidden}/") for hidden in HIDDEN)


@dataclass(frozen=True, slots=True)
class Copy:
    """`sources` are below the build's directory; `to` is absolute, with a trailing slash for a
    directory.
    """

    sources: tuple[str, ...]
    to: str
    mode: int | None = None
    owner: str = "0:0"
    """Numbers, or names of the image's accounts."""
    patterns: bool = False
    """Whether `*`, `?` and `[a-z]` in a source are patterns."""
    archives: bool = True
    """Whether a tar archive may be copied: Docker's ADD would unpack it."""
    ignore: DockerIgnore = NOTHING
    stage: int | None = None
    """The stage whose files are copied; None: those of the build's directory."""

    @property
    def text(self) -> str:
        return f"copy {' '.join(self.sources)} to {self.to}"


@dataclass(frozen=True, slots=True)
class Run:
    """A command of a recipe, which root runs, or of a Dockerfile (`argv`), which the image's user
    runs.
    """

    command: str
    network: NetworkPolicy = CLOSED
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Variables that the image does not keep."""
    pip: tuple[str, ...] = ()
    """Packages that this machine provides for the command, as for a sandbox."""

    @property
    def text(self) -> str:
        if self.pip:
            return f"pip {' '.join(self.pip)}"
        first, _, more = self.command.strip().partition("\n")
        return f"run {first}{' …' if more else ''}"


@dataclass(frozen=True, slots=True)
class SetEnv:
    env: Mapping[str, str]

    @property
    def text(self) -> str:
        return f"env {' '.join(self.env)}"


@dataclass(frozen=True, slots=True)
class SetLabels:
    labels: Mapping[str, str]

    @property
    def text(self) -> str:
        return f"label {' '.join(self.labels)}"


@dataclass(frozen=True, slots=True)
class SetWorkdir:
    path: str

    @property
    def text(self) -> str:
        return f"workdir {self.path}"


@dataclass(frozen=True, slots=True)
class SetUser:
    user: str

    @property
    def text(self) -> str:
        return f"user {self.user}"


@dataclass(frozen=True, slots=True)
class SetCommand:
    """The command that other runtimes start. A sandbox stores and shows it, and never runs it."""

    kind: Literal["entrypoint", "cmd"]
    argv: tuple[str, ...]
    clears: bool = False
    """Whether a new entrypoint removes the base's `cmd`."""

    @property
    def text(self) -> str:
        return f"{self.kind} {' '.join(self.argv)}"


Setting = SetEnv | SetLabels | SetWorkdir | SetUser | SetCommand
"""A step that changes only the configuration of the image."""
Step = Copy | Run | Setting


class Base(Protocol):
    """The base of a stage: an image of the store, or `scratch`."""

    @property
    def layers(self) -> tuple[str, ...]: ...
    @property
    def config(self) -> ImageConfig: ...


@dataclass(frozen=True, slots=True)
class Stage:
    base: Base | int
    """A number refers to an earlier stage."""
    steps: tuple[Step, ...]
    lines: tuple[int, ...] = ()
    """The line of each step in a Dockerfile; empty for a recipe."""


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """Everything that a build does. Its image is that of the last stage."""

    base: str
    """The name of the base of the last stage, or `scratch`."""
    stages: tuple[Stage, ...]
    warnings: tuple[str, ...] = ()
    """What of a Dockerfile is ignored, with its line."""


def configured(config: ImageConfig, step: Setting) -> ImageConfig:
    """Return the configuration of an image after a step."""
    match step:
        case SetCommand("cmd"):
            return replace(config, cmd=step.argv)
        case SetCommand():
            return replace(config, entrypoint=step.argv, cmd=() if step.clears else config.cmd)
        case SetEnv():
            return replace(config, env={**config.env, **step.env})
        case SetLabels():
            return replace(config, labels={**config.labels, **step.labels})
        case SetWorkdir():
            return replace(config, workdir=step.path.rstrip("/") or "/")
        case SetUser():
            return replace(config, user=step.user)


def configured_by(config: ImageConfig, steps: Sequence[Step]) -> ImageConfig:
    """Return the configuration of an image after all steps."""
    for step in steps:
        if not isinstance(step, Copy | Run):
            config = configured(config, step)
    return config
