"""Settings of agents: where their files are, which models they use, and how far a run may go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.settings.setting_fields import masked, setting
from sandkasten.settings.setting_parsers import (
    http_url,
    path,
    path_list,
    positive_integer,
    seconds,
    secret_in,
    service_key,
    string,
)

if TYPE_CHECKING:
    from sandkasten.ports.backend_plugins import SettingContext


def model_url(name: str, value: object) -> str:
    example = "http://127.0.0.1:11434/v1"
    url, parts = http_url(name, value, "the http(s) URL of a model server", example)
    if parts.username or parts.password or parts.query or parts.fragment:
        # URLs are printed in messages and by `config show`.
        raise InvalidConfiguration(
            f"{name} must not contain a user name, a password, a query or a fragment",
            hint="put the key into models.api_key",
            setting=name,
        )
    return url.rstrip("/")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The defaults are enough for real work, and a loop without progress still ends."""

    agent_dirs: tuple[Path, ...] = setting(
        "agents.dirs", path_list, (Path("agents"),), "Directories of agents' prompt files."
    )
    workflow_dirs: tuple[Path, ...] = setting(
        "workflows.dirs", path_list, (Path("workflows"),), "Directories of workflow files."
    )
    base_url: str | None = setting(
        "models.base_url",
        model_url,
        None,
        "Base URL of an OpenAI-compatible API, with its /v1, for models of every name.",
    )
    api_key: str | None = setting(
        "models.api_key",
        service_key,
        None,
        "The key of the models. Better in a file or a variable than here.",
        show=masked,
    )
    api_key_file: Path | None = setting(
        "models.api_key_file",
        path,
        None,
        "A file that holds the key of the models, readable only by the daemon's user.",
    )
    model: str | None = setting(
        "models.default", string, None, "The model of an agent whose file names none."
    )
    model_timeout_s: float = setting(
        "models.timeout_seconds", seconds, 300.0, "How long one answer of a model may take."
    )
    max_steps: int = setting(
        "agents.max_steps", positive_integer, 50, "Most model answers in one run of an agent."
    )
    max_tokens: int = setting(
        "agents.max_tokens", positive_integer, 1_000_000, "Most tokens of one run of an agent."
    )
    max_depth: int = setting(
        "agents.max_depth", positive_integer, 4, "How deep agents may call agents."
    )
    max_concurrent: int = setting(
        "agents.max_concurrent_runs", positive_integer, 32, "How many runs work at a time."
    )
    timeout_s: float = setting(
        "agents.timeout_seconds", seconds, 3600.0, "How long a run of an agent may take."
    )
    retention_s: float = setting(
        "retention.runs_seconds", seconds, 30 * 86_400.0, "How long ended runs are kept."
    )

    def completed(self, context: SettingContext) -> AgentSettings:
        """Return the settings with the key of `models.api_key_file`."""
        if self.api_key is not None or self.api_key_file is None:
            return self
        key = secret_in("models.api_key_file", self.api_key_file, service_key)
        return replace(self, api_key=key)
