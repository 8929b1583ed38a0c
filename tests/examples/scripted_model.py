"""Run an example of the OpenAI Agents SDK with a scripted model: argv[1].

Runs in the environment of the example. The model is called through the SDK's own interface, so the
example is unchanged.
"""

from __future__ import annotations

import json
import runpy
import sys
from typing import Any

from agents import Usage, set_tracing_disabled
from agents.items import ModelResponse
from agents.models.interface import Model
from agents.models.multi_provider import MultiProvider
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from tests.examples.sdk_stand_in import CALLS


class ScriptedModel(Model):
    def __init__(self) -> None:
        self.turn = 0

    async def get_response(
        self, system_instructions: str | None, input: Any, *args: Any, **kwargs: Any
    ) -> ModelResponse:
        turn, self.turn = self.turn, self.turn + 1
        if turn < len(CALLS):
            name, arguments = CALLS[turn]
            call = ResponseFunctionToolCall(
                type="function_call",
                id=f"fc_{turn}",
                call_id=f"call_{turn}",
                name=name,
                arguments=json.dumps(arguments),
            )
            return ModelResponse(output=[call], usage=Usage(), response_id=None)
        told = [one["output"] for one in input if one.get("type") == "function_call_output"]
        text = ResponseOutputText(text=json.dumps(told), type="output_text", annotations=[])
        message = ResponseOutputMessage(
            id="msg_1", role="assistant", status="completed", type="message", content=[text]
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the example does not stream")


if __name__ == "__main__":
    set_tracing_disabled(True)
    model = ScriptedModel()
    MultiProvider.get_model = lambda self, name: model
    runpy.run_path(sys.argv[1], run_name="__main__")
