"""Settings of model endpoints: which endpoint serves which model, and its timeouts. Values only.

An agent's file names a model as `model` or `provider/model`. The key is never part of a repr.
InvalidConfiguration when a name does not resolve; no connection is opened here.
"""

from __future__ import annotations

import re
from dataclasses import field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

_SETTINGS: Final = (
    "SANDKASTEN_MODELS_BASE_URL, SANDKASTEN_MODELS_API_KEY and SANDKASTEN_MODELS_DEFAULT "
    "to a chat completions endpoint"
)
# The key goes into a header, where a line break would start another header.
_KEY: Final = re.compile(r"[\x21-\x7e]*")


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """One chat completions endpoint. InvalidConfiguration when it is not valid."""

    base_url: str
    """Prefix of `/chat/completions`, including the version: `https://host/v1`."""
    api_key: str = field(default="", repr=False)
    model: str = ""
    """Default for agents that name no model."""
    timeout_s: float = 300.0
    """Timeout of one request including its answer; each retry starts anew."""
    idle_s: float = 90.0
    """Timeout between two chunks of an answer."""
    max_retries: int = 4
    first_pause_s: float = 0.5
    """Pause before the first retry; it doubles with each further retry."""
    stream: bool = True
    strip_provider: bool = True
    """Whether `openai/gpt-4o` is requested as `gpt-4o`. A router of many providers needs the
    full name.
    """
    url_name: str = "SANDKASTEN_MODELS_BASE_URL"
    key_name: str = "SANDKASTEN_MODELS_API_KEY"
    """Settings of the URL and the key, for messages; the second is empty if there is no key."""

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.base_url)
            usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            usable = False
        # The value is not repeated: it may contain a password.
        if not usable:
            raise InvalidConfiguration(
                "the URL of the model endpoint is not an http or https URL",
                hint=f"set {self.url_name}, for example to http://localhost:11434/v1",
            )
        if parts.username is not None or parts.query or parts.fragment:
            raise InvalidConfiguration(
                "the URL of the model endpoint contains a user, a query or a fragment",
                hint=f"pass the key in {self.key_name}, not in the URL",
            )
        if not _KEY.fullmatch(self.api_key):
            raise InvalidConfiguration(
                "the key of the model endpoint contains a space or a non-ASCII character",
                hint=f"check {self.key_name} for a line break",
            )

    @property
    def url(self) -> str:
        return self.base_url.rstrip("/") + "/chat/completions"

    @property
    def shown(self) -> str:
        """Return the URL for messages."""
        return self.base_url


_NONE: Final[Mapping[str, ModelSettings]] = MappingProxyType({})
_NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Models:
    """Endpoints of this machine: a default, and others for provider names."""

    default: ModelSettings | None = None
    providers: Mapping[str, ModelSettings] = field(default_factory=lambda: _NONE)
    """The settings by the part of a model name before the first slash, which is then not sent."""
    default_name: str = ""
    """Model of agents that name none, if there is no default endpoint: `provider/model`."""
    key_names: Mapping[str, str] = field(default_factory=lambda: _NO_NAMES)
    """By provider: the one variable that makes it usable."""

    def for_name(self, name: str | None) -> ModelSettings:
        """Return the settings for a model name, with `model` as it is sent."""
        name = name or ("" if self.default else self.default_name)
        provider, slash, rest = name.partition("/")
        own = self.providers.get(provider) if slash else None
        if own is not None:
            return replace(own, model=_named(rest or own.model, provider))
        if self.default is None:
            wanted = f"the model {name!r}" if name else "an agent that names no model"
            variable = self.key_names.get(provider) if slash else None
            raise InvalidConfiguration(
                f"no model endpoint is configured for {wanted}",
                hint=f"set {variable}, or {_SETTINGS}" if variable else f"set {_SETTINGS}",
            )
        if not name:
            return replace(self.default, model=_named(self.default.model, ""))
        short = rest if self.default.strip_provider and rest else name
        return replace(self.default, model=short)


def _named(model: str, provider: str) -> str:
    if model:
        return model
    whose = f"of the provider {provider!r}" if provider else "of the default endpoint"
    raise InvalidConfiguration(
        f"neither the agent's file nor the settings {whose} name a model",
        hint="write `model:` into the file, or set SANDKASTEN_MODELS_DEFAULT",
    )
