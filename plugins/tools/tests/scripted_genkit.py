"""A Genkit with the tools of a caller, and a model that calls them by a script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from genkit import Genkit, Message, ModelRequest, ModelResponse, Part, Role, ToolRequest

from sandkasten_tools.genkit_tools import define_tools

if TYPE_CHECKING:
    from collections.abc import Sequence


class Model:
    """Calls the tools of a script, one per answer, and keeps the results."""

    def __init__(self, script: Sequence[tuple[str, Any]]) -> None:
        self._script = script
        self.offered: list[dict[str, Any]] = []
        self.answers: list[Any] = []

    async def __call__(self, request: ModelRequest, context: object) -> ModelResponse[Any]:
        tools = request.tools or []
        self.offered = [tool.model_dump(by_alias=True, exclude_none=True) for tool in tools]
        self.answers = [
            part.tool_response.output
            for message in request.messages
            for part in message.content
            if part.tool_response is not None
        ]
        if len(self.answers) == len(self._script):
            return _said(Part(text="done"))
        name, arguments = self._script[len(self.answers)]
        return _said(Part(tool_request=ToolRequest(name=name, input=arguments)))


def _said(part: Part) -> ModelResponse[Any]:
    return ModelResponse(message=Message(role=Role.MODEL, content=[part]))


async def asked(caller: Any, script: Sequence[tuple[str, Any]]) -> Model:
    ai = Genkit()
    model = Model(script)
    ai.define_model("scripted", model.__call__)
    names = define_tools(ai, caller)
    done = await ai.generate(
        model="scripted", prompt="work", tools=names, max_turns=len(script) + 1
    )
    assert done.text == "done"
    return model
