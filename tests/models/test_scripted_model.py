"""The scripted model answers by the conversation only, also as a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from sandkasten_agents.chat.chat_client import ChatModel, ChatRequest, ToolCall
from tests.models.server import ScriptedModel, script_of, settings_of
from tests.patience import PATIENCE_S

PROGRAM = Path(__file__).resolve().parents[2] / "examples/agents/scripted_model.py"
SCRIPT = {
    "agents": [
        {
            "system": "You write",
            "turns": [
                {"calls": [{"name": "exec", "arguments": {"command": "echo ${user}"}}]},
                {"text": "it printed ${last.stdout}"},
            ],
        },
        {"turns": [{"text": {"said": "${user}"}}]},
    ]
}
SYSTEM = {"role": "system", "content": "You write code."}
USER = {"role": "user", "content": "hello"}
ASSISTANT = {"role": "assistant", "content": "…"}
TOOL = {"role": "tool", "tool_call_id": "x", "content": '{"stdout": "out"}'}


@pytest.mark.parametrize(
    ("messages", "text", "calls"),
    [
        ([SYSTEM, USER], "", (ToolCall("call_0_0", "exec", '{"command": "echo hello"}'),)),
        ([SYSTEM, USER, ASSISTANT, TOOL], "it printed out", ()),
        ([SYSTEM, USER, ASSISTANT, TOOL, ASSISTANT, TOOL], "it printed out", ()),
        ([USER], '{"said": "hello"}', ()),
    ],
)
async def test_a_script_answers_by_agent_and_turn(messages, text, calls):
    async with ScriptedModel(script_of(SCRIPT)) as model, ChatModel() as chat:
        reply = await chat.ask(settings_of(model), ChatRequest(messages))
    assert (reply.text, reply.tool_calls) == (text, calls)


def test_the_scripted_model_program_prints_its_address(tmp_path):
    (tmp_path / "script.json").write_text(json.dumps(SCRIPT))
    words = [sys.executable, str(PROGRAM), str(tmp_path / "script.json")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            url = program.stdout.readline().strip() + "/chat/completions"
            body = json.dumps({"model": "m", "messages": [USER]}).encode()
            with urllib.request.urlopen(
                urllib.request.Request(url, body), timeout=PATIENCE_S
            ) as answer:
                found = json.load(answer)
        finally:
            program.terminate()
    assert found["choices"][0]["message"]["content"] == '{"said": "hello"}'
