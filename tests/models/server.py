"""The scripted model of the examples, and settings that use it without waiting.

`async with ScriptedModel(script) as model:` and `settings_of(model)`. As a program: `python
examples/agents/scripted_model.py script.json`.
"""

from __future__ import annotations

from typing import Any

from examples.agents.scripted_model import (
    Answer,
    Asked,
    Call,
    Script,
    ScriptedModel,
    script_of,
)
from sandkasten.agents.chat.model_settings import ModelSettings

__all__ = [
    "KEY",
    "Answer",
    "Asked",
    "Call",
    "Script",
    "ScriptedModel",
    "script_of",
    "settings_of",
]

KEY = "sk-test-0123456789abcdef"


def settings_of(model: ScriptedModel, **others: Any) -> ModelSettings:
    """Retries come at once, so that no test waits for them."""
    given: dict[str, Any] = {
        "base_url": model.base_url,
        "api_key": KEY,
        "model": "scripted",
        "first_pause_s": 0.001,
        "timeout_s": 30.0,
        "idle_s": 20.0,
        "max_retries": 3,
    }
    return ModelSettings(**{**given, **others})
