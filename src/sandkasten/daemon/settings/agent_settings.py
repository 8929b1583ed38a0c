"""The settings of agents: where their files lie, which models they ask, and how far a run may go.

Built from values that `settings` has resolved; raises InvalidConfiguration for what cannot be
meant. Asks no model and opens no file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from sandkasten.daemon.settings.durations import seconds
from sandkasten.daemon.settings.setting_parsers import bad, count, names, text
from sandkasten.errors import InvalidConfiguration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandkasten.daemon.settings.setting_parsers import Value

# Enough for real work, and a loop that goes nowhere still ends.
MAX_STEPS: Final = 50
MAX_TOKENS: Final = 1_000_000
MAX_DEPTH: Final = 4
MAX_CONCURRENT: Final = 32
RUN_TIMEOUT_S: Final = 3600.0
MODEL_TIMEOUT_S: Final = 300.0
RETENTION_S: Final = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class AgentSettings:
    agent_dirs: tuple[Path, ...] = (Path("agents"),)
    workflow_dirs: tuple[Path, ...] = (Path("workflows"),)
    base_url: str | None = None
    """Of an endpoint that speaks as OpenAI's does; None: no agent can run."""
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None
    """For agents whose file names none."""
    model_timeout_s: float = MODEL_TIMEOUT_S
    max_steps: int = MAX_STEPS
    max_tokens: int = MAX_TOKENS
    max_depth: int = MAX_DEPTH
    max_concurrent: int = MAX_CONCURRENT
    timeout_s: float = RUN_TIMEOUT_S
    retention_s: float = RETENTION_S


def base_url(name: str, value: object) -> str:
    said = text(name, value)
    try:
        split = urlsplit(said)
        usable = split.scheme in ("http", "https") and bool(split.hostname) and split.port != 0
    except ValueError as exc:
        raise bad(name, "an address", value) from exc
    if not usable or not said.isprintable() or " " in said:
        raise bad(name, "http(s)://host[:port]/path, such as http://127.0.0.1:11434/v1", value)
    if split.username or split.password or split.query or split.fragment:
        # Addresses are printed, in messages and by `config show`.
        raise InvalidConfiguration(
            f"{name} holds a name, a password, a query or a fragment",
            hint="put the key into models.api_key",
            setting=name,
        )
    return said.rstrip("/")


def model_key(name: str, value: object) -> str:
    """Not repeated in any message. Local models take any text, so a short one is fine."""
    if (
        not isinstance(value, str)
        or not 1 <= len(value) <= 4096
        or not value.isascii()
        or not value.isprintable()
        or " " in value
    ):
        raise InvalidConfiguration(
            f"{name} must be printable ASCII characters without blanks",
            hint="give the provider's key as it is",
            setting=name,
        )
    return value


SETTINGS: Final[tuple[tuple[str, Callable[[str, object], Value], Value], ...]] = (
    ("agents.dirs", names, ["agents"]),
    ("workflows.dirs", names, ["workflows"]),
    ("models.base_url", base_url, None),
    ("models.api_key", model_key, None),
    ("models.default", text, None),
    ("models.timeout_seconds", seconds, MODEL_TIMEOUT_S),
    ("agents.max_steps", count, MAX_STEPS),
    ("agents.max_tokens", count, MAX_TOKENS),
    ("agents.max_depth", count, MAX_DEPTH),
    ("agents.max_concurrent_runs", count, MAX_CONCURRENT),
    ("agents.timeout_seconds", seconds, RUN_TIMEOUT_S),
    ("retention.runs_seconds", seconds, RETENTION_S),
)


def agent_settings(values: Mapping[str, Value]) -> AgentSettings:
    return AgentSettings(
        agent_dirs=_paths(values["agents.dirs"]),
        workflow_dirs=_paths(values["workflows.dirs"]),
        base_url=_maybe(values["models.base_url"]),
        api_key=_maybe(values["models.api_key"]),
        model=_maybe(values["models.default"]),
        model_timeout_s=_number(values["models.timeout_seconds"]),
        max_steps=int(_number(values["agents.max_steps"])),
        max_tokens=int(_number(values["agents.max_tokens"])),
        max_depth=int(_number(values["agents.max_depth"])),
        max_concurrent=int(_number(values["agents.max_concurrent_runs"])),
        timeout_s=_number(values["agents.timeout_seconds"]),
        retention_s=_number(values["retention.runs_seconds"]),
    )


def _paths(value: Value) -> tuple[Path, ...]:
    return tuple(Path(one) for one in value) if isinstance(value, list) else ()


def _maybe(value: Value) -> str | None:
    return None if value is None else str(value)


def _number(value: Value) -> float:
    assert isinstance(value, int | float)
    return float(value)
