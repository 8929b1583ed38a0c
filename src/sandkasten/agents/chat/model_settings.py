"""Which endpoint answers for which model, and how long it is waited for. Values only.

The names in an agent's file are `model` or `provider/model`. The key of an endpoint is in no repr.
InvalidConfiguration when a name does not resolve; nothing here opens a connection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from sandkasten.errors import InvalidConfiguration

if TYPE_CHECKING:
    from collections.abc import Mapping

_SETTINGS: Final = (
    "SANDKASTEN_MODELS_BASE_URL, SANDKASTEN_MODELS_API_KEY and SANDKASTEN_MODELS_DEFAULT"
)
# It goes into a header: a line break in it would begin another one.
_KEY: Final = re.compile(r"[\x21-\x7e]*")


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """One endpoint of chat completions. InvalidConfiguration when it cannot be one."""

    base_url: str
    """What stands before `/chat/completions`, with the version: `https://host/v1`."""
    api_key: str = field(default="", repr=False)
    model: str = ""
    """Asked for where an agent names none."""
    timeout_s: float = 300.0
    """Of one request, answer and all; a request that is tried again has it anew."""
    idle_s: float = 90.0
    """Between two pieces of an answer that has begun."""
    max_retries: int = 4
    first_pause_s: float = 0.5
    """Before the first retry; twice as long before each next one."""
    stream: bool = True
    strip_provider: bool = True
    """Whether `openai/gpt-4o` is asked for as `gpt-4o`. A router of many wants it whole."""

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.base_url)
            usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            usable = False
        # What was given is not repeated: it may hold a password.
        if not usable:
            raise InvalidConfiguration(
                "the URL of the model endpoint is not an http or https URL",
                hint="set SANDKASTEN_MODELS_BASE_URL, for example to http://localhost:11434/v1",
            )
        if parts.username is not None or parts.query or parts.fragment:
            raise InvalidConfiguration(
                "the URL of the model endpoint contains a user, a query or a fragment",
                hint="pass the key in SANDKASTEN_MODELS_API_KEY, not in the URL",
            )
        if not _KEY.fullmatch(self.api_key):
            raise InvalidConfiguration(
                "the key of the model endpoint contains a space or a non-ASCII character",
                hint="check SANDKASTEN_MODELS_API_KEY for a line break",
            )

    @property
    def url(self) -> str:
        return self.base_url.rstrip("/") + "/chat/completions"

    @property
    def shown(self) -> str:
        """For messages."""
        return self.base_url


_NONE: Final[Mapping[str, ModelSettings]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Models:
    """The endpoints of this machine: one for every name, and others for names of a provider."""

    default: ModelSettings | None = None
    providers: Mapping[str, ModelSettings] = field(default_factory=lambda: _NONE)
    """By what stands before the first slash of a model's name, which is then not sent."""

    def for_name(self, name: str | None) -> ModelSettings:
        """With `model` as it is to be asked for."""
        name = name or ""
        provider, slash, rest = name.partition("/")
        own = self.providers.get(provider) if slash else None
        if own is not None:
            return replace(own, model=_named(rest or own.model, provider))
        if self.default is None:
            wanted = f"the model {name!r}" if name else "an agent that names no model"
            raise InvalidConfiguration(
                f"no model endpoint is configured for {wanted}",
                hint=f"set {_SETTINGS} to a chat completions endpoint",
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
