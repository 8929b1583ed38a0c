"""Settings of model providers: each needs only its key, which its own variable may hold.

All of them are asked through chat completions at a known URL. `models.base_url` is the operator's
own endpoint: beside it, a provider counts only if a setting of Sandkasten names it, because a
variable of another program must not send a conversation elsewhere.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from sandkasten.lazy_dataclass import dataclass
from sandkasten.settings.setting_fields import masked, setting
from sandkasten.settings.setting_parsers import service_key
from sandkasten_agents.agent_settings import AgentSettings, model_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.ports.backend_plugins import SettingContext
    from sandkasten.settings.setting_fields import Origin

KEY_VARIABLES: Final[Mapping[str, str]] = {
    "openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "gemini": "GEMINI_API_KEY",
}
_OLLAMA_PORT: Final = 11434


@dataclass(frozen=True, slots=True)
class ProviderEndpoint:
    name: str
    """The part of a model name before the first slash."""
    base_url: str
    api_key: str | None = field(default=None, repr=False)


def _versioned_url(name: str, value: object) -> str:
    """Accept also a URL without a path, as Anthropic's own tools write it."""
    url = model_url(name, value)
    return url if urlsplit(url).path else f"{url}/v1"


def _ollama_url(name: str, value: object) -> str:
    """Accept a URL, and the forms of OLLAMA_HOST: a host, a host with a port, or a port."""
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and text and "://" not in text:
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdigit():
            host, port = text, str(_OLLAMA_PORT)
        # Servers are told to listen on it; it is no address to connect to.
        text = f"http://{'127.0.0.1' if host in ('', '0.0.0.0') else host}:{port}"  # noqa: S104
    url = model_url(name, text)
    return url if urlsplit(url).path.endswith("/v1") else f"{url}/v1"


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    openai_url: str = setting(
        "models.openai.base_url",
        model_url,
        "https://api.openai.com/v1",
        "Base URL of models named openai/….",
        aliases=("OPENAI_BASE_URL",),
    )
    openai_key: str | None = setting(
        "models.openai.api_key",
        service_key,
        None,
        "The key of models named openai/….",
        aliases=("OPENAI_API_KEY",),
        show=masked,
    )
    anthropic_url: str = setting(
        "models.anthropic.base_url",
        _versioned_url,
        "https://api.anthropic.com/v1",
        "Base URL of models named anthropic/…; without a path, /v1 is added.",
        aliases=("ANTHROPIC_BASE_URL",),
    )
    anthropic_key: str | None = setting(
        "models.anthropic.api_key",
        service_key,
        None,
        "The key of models named anthropic/….",
        aliases=("ANTHROPIC_API_KEY",),
        show=masked,
    )
    gemini_url: str = setting(
        "models.gemini.base_url",
        model_url,
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "Base URL of models named gemini/….",
    )
    gemini_key: str | None = setting(
        "models.gemini.api_key",
        service_key,
        None,
        "The key of models named gemini/….",
        aliases=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        show=masked,
    )
    ollama_url: str = setting(
        "models.ollama.base_url",
        _ollama_url,
        f"http://127.0.0.1:{_OLLAMA_PORT}/v1",
        "Base URL of models named ollama/…, or a host as OLLAMA_HOST has it; needs no key.",
        aliases=("OLLAMA_HOST",),
    )
    endpoints: tuple[ProviderEndpoint, ...] = ()
    """The usable providers, by the prefix of a model's name."""

    def completed(self, context: SettingContext) -> ProviderSettings:
        base_url = context.of(AgentSettings).base_url
        return replace(self, endpoints=self._usable(base_url, context.origins))

    def _usable(
        self, base_url: str | None, origins: Mapping[str, Origin]
    ) -> tuple[ProviderEndpoint, ...]:
        """Return the usable providers; `base_url` is the operator's own endpoint, if any."""
        endpoints = []
        for name, url, key in (
            ("openai", self.openai_url, self.openai_key),
            ("anthropic", self.anthropic_url, self.anthropic_key),
            ("gemini", self.gemini_url, self.gemini_key),
            ("ollama", self.ollama_url, None),
        ):
            sources = [
                origins[setting_name].origin
                for setting_name in (f"models.{name}.base_url", f"models.{name}.api_key")
                if setting_name in origins
            ]
            if base_url is not None and not any(map(_is_ours, sources)):
                continue
            # A server of one's own may need no key.
            if key is not None or name == "ollama" or sources[0] != "default":
                endpoints.append(ProviderEndpoint(name, url, key))
        return tuple(endpoints)


def _is_ours(origin: str) -> bool:
    """Return whether a flag, our file or our own variable set the value."""
    return origin != "default" and (
        not origin.startswith("env ") or origin.startswith("env SANDKASTEN_")
    )
