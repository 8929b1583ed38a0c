"""The scripted model of the examples, and settings that use it without waiting.

`async with ScriptedModel(script) as model:` and `settings_of(model)`. As a program: `python
examples/agents/scripted_model.py script.json`.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from examples.agents.scripted_model import (
    Answer,
    Asked,
    Call,
    Script,
    ScriptedModel,
    script_of,
)
from sandkasten_agents.chat.model_settings import ModelSettings
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "KEY",
    "Answer",
    "Asked",
    "Call",
    "Script",
    "ScriptedModel",
    "in_thread",
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


@contextmanager
def in_thread(script: Script) -> Iterator[ScriptedModel]:
    """A model in a thread with its own loop, for tests without one."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    found: list[ScriptedModel] = []
    end = asyncio.Event()

    async def serve() -> None:
        async with ScriptedModel(script) as one:
            found.append(one)
            ready.set()
            await end.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield found[0]
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(PATIENCE_S)
        loop.close()
