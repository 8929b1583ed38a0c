"""The model client: what it parses, what it retries, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import ssl
import time

import pytest

from sandkasten.errors import InvalidConfiguration, ModelUnavailable, RunFailed, SandkastenError
from sandkasten_agents.chat import chat_wire
from sandkasten_agents.chat.chat_client import (
    ChatModel,
    ChatRequest,
    Models,
    ModelSettings,
    Reply,
    ToolCall,
)
from sandkasten_agents.chat.chat_wire import EventParser, ReplyAssembly, Unreadable
from tests.engines import certificates
from tests.models.server import KEY, Answer, Call, ScriptedModel, settings_of
from tests.patience import PATIENCE_S

HELLO = ChatRequest([{"role": "user", "content": "hello"}])
GOOD = Answer(text="good day")
GOOD_REPLY = Reply("good day", (), "stop", "", 10, 5)


async def asked(*answers: Answer, request: ChatRequest = HELLO, **others: object) -> Reply:
    async with ScriptedModel(answers) as model, ChatModel() as chat:
        return await chat.ask(settings_of(model, **others), request)


async def failure(*answers: Answer, request: ChatRequest = HELLO, **others: object):
    with pytest.raises(SandkastenError) as caught:
        await asked(*answers, request=request, **others)
    told = caught.value
    assert KEY not in f"{told} {told.details} {told!r} {told.__cause__!r}"
    return told


# ---- parsing


@pytest.mark.promise("P66")
@pytest.mark.parametrize("cut", [None, 1, 2, 3, 7, 64])
async def test_a_stream_split_anywhere_is_reassembled(cut):
    answer = Answer(
        text="Grüße, 世界 👋",
        calls=[Call("one", {"path": "ä/👋"}, "a"), Call("two", {"n": [1, 2]}, "b")],
        bytes_at_once=cut,
        piece=1,
    )
    assert await asked(answer) == Reply(
        text="Grüße, 世界 👋",
        tool_calls=(
            ToolCall("a", "one", '{"path": "ä/👋"}'),
            ToolCall("b", "two", '{"n": [1, 2]}'),
        ),
        finish_reason="tool_calls",
        prompt_tokens=10,
        completion_tokens=5,
    )


@pytest.mark.parametrize("stream", [True, False])
async def test_a_response_without_streaming_gives_the_same_answer(stream):
    answer = Answer(text="hi", calls=[Call("one", {}, ""), Call("one", {}, "")], stream=False)
    assert await asked(answer, stream=stream) == Reply(
        "hi", (ToolCall("", "one", "{}"), ToolCall("", "one", "{}")), "tool_calls", "", 10, 5
    )


async def test_missing_token_usage_counts_as_zero():
    assert await asked(Answer(text="x", usage=None)) == Reply("x", (), "stop")


async def test_the_request_has_the_fields_the_endpoint_knows():
    tool = {"type": "function", "function": {"name": "one", "parameters": {"type": "object"}}}
    request = ChatRequest(HELLO.messages, [tool], {"type": "json_object"}, {"temperature": 0.5})
    async with ScriptedModel([GOOD]) as model, ChatModel() as chat:
        await chat.ask(settings_of(model), request)
    (seen,) = model.requests
    assert seen.headers["Authorization"] == f"Bearer {KEY}"
    assert seen.body == {
        "model": "scripted",
        "messages": [{"role": "user", "content": "hello"}],
        "tools": [tool],
        "response_format": {"type": "json_object"},
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_a_long_conversation_arrives_completely():
    long = ChatRequest([{"role": "user", "content": "ü" * (1 << 20)}])
    async with ScriptedModel([GOOD]) as model, ChatModel() as chat:
        assert await chat.ask(settings_of(model), long) == GOOD_REPLY
    assert model.requests[0].user == "ü" * (1 << 20)


async def test_an_unpaired_surrogate_does_not_prevent_the_request():
    assert await asked(GOOD, request=ChatRequest([{"role": "user", "content": "\udc80"}])) == (
        GOOD_REPLY
    )


async def test_one_connection_serves_several_requests():
    async with ScriptedModel([GOOD] * 3) as model, ChatModel() as chat:
        for _ in range(3):
            await chat.ask(settings_of(model), HELLO)
        assert chat._http is not None
        assert chat._http.connector is not None
        assert [len(kept) for kept in chat._http.connector._conns.values()] == [1]


# ---- retries


@pytest.mark.promise("P66")
@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 529])
async def test_a_transient_failure_is_retried(status):
    assert await asked(Answer(status=status, raw=b"later"), GOOD) == GOOD_REPLY


@pytest.mark.parametrize("fault", ["hang", "silent", "drop"])
async def test_a_connection_that_fails_before_the_first_word_is_retried(fault):
    # Half of an answer without text is a chunk without content.
    first = Answer(fault=fault)
    assert await asked(first, GOOD, GOOD, GOOD, timeout_s=0.4) == GOOD_REPLY


async def test_the_requested_retry_delay_is_respected_and_reported():
    told: list[float] = []

    async def retried(reason: str, pause_s: float) -> None:
        told.append(pause_s)

    later = Answer(status=429, headers={"Retry-After-Ms": "50"}, raw=b"{}")
    async with ScriptedModel([later, later, GOOD]) as model, ChatModel() as chat:
        assert await chat.ask(settings_of(model), HELLO, retried) == GOOD_REPLY
    assert told == [0.05, 0.05]


async def test_a_retry_delay_over_the_limit_fails_at_once():
    told = await failure(Answer(status=429, headers={"Retry-After": "3600"}, raw=b"{}"), GOOD)
    assert isinstance(told, ModelUnavailable)


async def test_retries_are_counted():
    broken = Answer(status=500, raw=b"broken")
    async with ScriptedModel(lambda _: broken) as model, ChatModel() as chat:
        with pytest.raises(ModelUnavailable, match="500.*broken"):
            await chat.ask(settings_of(model, max_retries=2), HELLO)
    assert len(model.requests) == 3


@pytest.mark.promise("P66")
async def test_nothing_is_retried_after_the_first_word():
    dropped = Answer(text="a" * 50, fault="drop")
    async with ScriptedModel([dropped, GOOD]) as model, ChatModel() as chat:
        with pytest.raises(ModelUnavailable, match="during the answer"):
            await chat.ask(settings_of(model), HELLO)
    assert len(model.requests) == 1


async def test_an_unreachable_endpoint_is_an_error_that_names_the_address():
    settings = ModelSettings("http://127.0.0.1:1/v1", KEY, "m", max_retries=1, first_pause_s=0.001)
    async with ChatModel() as chat:
        with pytest.raises(ModelUnavailable, match=r"http://127\.0\.0\.1:1/v1 failed"):
            await chat.ask(settings, HELLO)


# ---- permanent failures


def _error(status: int, **fields: object) -> Answer:
    return Answer(status=status, raw=json.dumps({"error": fields}).encode())


@pytest.mark.promise("P66")
@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (_error(400, message="no such tool"), RunFailed, "no such tool"),
        (_error(401, message=f"bad key {KEY}"), InvalidConfiguration, r"bad key \*\*\*"),
        (_error(404, message="no model"), InvalidConfiguration, "no model"),
        (_error(429, message="pay", code="insufficient_quota"), RunFailed, "quota is used up"),
        (_error(400, message="x", code="context_length_exceeded"), RunFailed, "context window"),
        (
            _error(400, message="This model's maximum context length is 8192 tokens."),
            RunFailed,
            "8192",
        ),
        (
            Answer(status=307, headers={"Location": "http://127.0.0.1:1/"}, raw=b""),
            InvalidConfiguration,
            "redirects are not followed",
        ),
        (Answer(status=400, raw=b"\x1b[31m<html>" + b"x" * 9999), RunFailed, r"^[^\x1b]{,700}$"),
        (Answer(status=400, raw=b'{"error": [[[]]]}'), RunFailed, "rejected the request"),
    ],
)
async def test_a_permanent_failure_is_not_retried(answer, kind, words):
    async with ScriptedModel([answer, GOOD]) as model, ChatModel() as chat:
        with pytest.raises(kind, match=words) as caught:
            await chat.ask(settings_of(model), HELLO)
    assert len(model.requests) == 1
    assert not caught.value.retryable
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("message", "gone", "there"),
    [
        ("Unknown parameter: 'stream_options'", "stream_options", "stream"),
        ("response_format json_schema is not supported", "response_format", "messages"),
        ("Use 'max_completion_tokens' in place of it", "max_tokens", "max_completion_tokens"),
    ],
)
async def test_an_unsupported_request_field_is_left_out_and_retried(message, gone, there):
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}}}
    request = ChatRequest(HELLO.messages, (), schema, {"max_tokens": 9})
    async with ScriptedModel([_error(400, message=message), GOOD]) as model, ChatModel() as chat:
        assert (await chat.ask(settings_of(model), request)).text == "good day"
    first, second = (one.body for one in model.requests)
    assert gone in first
    assert gone not in second
    assert there in second
    if gone == "response_format":
        assert '{"type": "null"}' in second["messages"][0]["content"]


# ---- untrusted endpoints

_CHUNK = b'data: {"choices": [{"index": 0, "delta": %s}]}\n\n'


def _delta(text: bytes) -> bytes:
    return _CHUNK % text


@pytest.mark.promise("P66")
@pytest.mark.parametrize(
    "raw",
    [
        b"data: {nonsense\n\n",
        b"data: []\n\n",
        b"data: 7\n\n",
        b'data: {"choices": 7}\n\n',
        b'data: {"choices": [7]}\n\n',
        b"data: " + b"[" * 100_000 + b"\n\n",
        b"data: " + b"9" * 100_000 + b"\n\n",
        b"data: \xff\xfe\n\n",
        _delta(b"7"),
        _delta(b'{"content": 7}'),
        _delta(b'{"tool_calls": 7}'),
        _delta(b'{"tool_calls": [7]}'),
        _delta(b'{"tool_calls": [{"index": -1}]}'),
        _delta(b'{"tool_calls": [{"index": true}]}'),
        _delta(b'{"tool_calls": [{"index": 1e3}]}'),
        _delta(b'{"tool_calls": [{"index": 64}]}'),
        _delta(b'{"tool_calls": [{"index": 0, "id": 7}]}'),
        _delta(b'{"tool_calls": [{"index": 0, "function": 7}]}'),
        _delta(b'{"tool_calls": [{"index": 0, "function": {"name": ["a"]}}]}'),
        _delta(b'{"tool_calls": [{"index": 0, "function": {"arguments": 7}}]}'),
        _delta(b'{"tool_calls": [{"index": 0, "function": {"name": "' + b"n" * 999 + b'"}}]}'),
        _delta(b'{"tool_calls": [{"function": {"arguments": "' + b"a" * (2 << 20) + b'"}}]}'),
        _delta(b'{"content": "' + b"a" * (3 << 20) + b'"}') * 2,
        b"data: " + b" " * (5 << 20),
        b"data: " + b" " * (1 << 20) + b"\n" + (b"data: " + b" " * (1 << 20) + b"\n") * 4,
    ],
    ids=lambda raw: repr(raw[:60]),
)
async def test_a_malformed_stream_is_an_error_of_the_endpoint(raw):
    answer = Answer(raw=raw, content_type="text/event-stream")
    assert isinstance(await failure(answer, GOOD), ModelUnavailable)


@pytest.mark.parametrize(
    "raw", [b"", b"<html>Sign in</html>", b"{}", b"[]", b'{"choices": []}', b'"' + b"x" * 99]
)
@pytest.mark.parametrize("kind", ["text/html", "application/json"])
async def test_a_malformed_answer_is_an_error_of_the_endpoint(raw, kind):
    assert isinstance(await failure(Answer(raw=raw, content_type=kind), GOOD), ModelUnavailable)


async def test_a_compressed_answer_is_not_decompressed():
    answer = Answer(raw=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
    assert isinstance(await failure(answer, GOOD), ModelUnavailable)


async def test_an_error_inside_a_stream_is_reported():
    event = b'data: {"error": {"message": "overloaded", "code": "busy"}}\n\n'
    told = await failure(Answer(raw=event, content_type="text/event-stream"), max_retries=0)
    assert isinstance(told, ModelUnavailable)
    assert "overloaded" in told.message


@pytest.mark.promise("P66")
@pytest.mark.parametrize("fault", ["endless", "huge_line"])
async def test_an_endless_answer_is_cut_off(fault, monkeypatch, full_size):
    if not full_size:
        monkeypatch.setattr("sandkasten_agents.chat.chat_client.MOST_BYTES", 2 << 20)
        monkeypatch.setattr(chat_wire, "MOST_LINE_BYTES", 1 << 20)
    told = await failure(Answer(text="no end", fault=fault))
    assert isinstance(told, ModelUnavailable)
    assert "longer than" in told.message


async def test_a_silent_stream_ends_at_the_idle_deadline():
    told = await failure(Answer(text="x" * 99, fault="silent"), idle_s=0.5)
    assert isinstance(told, ModelUnavailable)
    assert "during the answer" in told.message


@pytest.mark.promise("P66")
async def test_an_endpoint_that_does_not_speak_http_is_an_error():
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(lines.pop())
        writer.close()

    lines = [
        b"\x00\xff" * 500 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nContent-Type: application/json\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        b"",
    ]
    async with await asyncio.start_server(babble, "127.0.0.1", 0) as server, ChatModel() as chat:
        port = server.sockets[0].getsockname()[1]
        settings = ModelSettings(f"http://127.0.0.1:{port}/v1", KEY, "m", max_retries=0)
        while lines:
            with pytest.raises(ModelUnavailable):
                await chat.ask(settings, HELLO)


@pytest.mark.promise("P66")
async def test_an_endpoint_with_an_untrusted_certificate_does_not_get_the_key(tmp_path):
    certificates.make(tmp_path / "own", "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own/server.pem", tmp_path / "own/server-key.pem")
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(1))
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        settings = ModelSettings(f"https://127.0.0.1:{port}/v1", KEY, "m")
        async with ChatModel() as chat:
            with pytest.raises(ModelUnavailable, match="TLS certificate cannot be verified"):
                await chat.ask(settings, HELLO)
    assert heard == []


async def test_a_password_for_the_host_in_netrc_is_not_used(tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with ScriptedModel([GOOD]) as model, ChatModel() as chat:
        await chat.ask(settings_of(model), HELLO)
    assert model.requests[0].headers["Authorization"] == f"Bearer {KEY}"


async def test_remote_endpoints_are_reached_through_the_proxy_of_the_environment(monkeypatch):
    async with ScriptedModel([GOOD]) as model, ChatModel() as chat:
        proxy = model.base_url.removesuffix("/v1").replace("://", "://me:pw@")
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        settings = settings_of(model, base_url="http://models.example/v1", max_retries=0)
        assert await chat.ask(settings, HELLO) == GOOD_REPLY
    assert model.requests[0].headers["Host"] == "models.example"
    assert model.requests[0].headers["Proxy-Authorization"] == "Basic bWU6cHc="
    assert model.requests[0].headers["Authorization"] == f"Bearer {KEY}"


@pytest.mark.promise("P66")
async def test_a_key_repeated_by_the_endpoint_is_not_passed_on():
    answer = Answer(text=f"your key is {KEY}", calls=[Call("one", {"key": KEY})], piece=3)
    reply = await asked(answer)
    assert reply.text == "your key is ***"
    assert reply.tool_calls[0].arguments == '{"key": "***"}'


async def test_cancelling_closes_the_connection():
    async with ScriptedModel([Answer(text="x" * 99, fault="silent")]) as model, ChatModel() as chat:
        task = asyncio.create_task(chat.ask(settings_of(model), HELLO))
        await _until(lambda: len(model.requests) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await _until(lambda: model.gone == 1)


async def _until(seen) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not seen():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


# ---- chunks


def test_call_pieces_without_an_index_are_separated_by_id_and_name():
    found = ReplyAssembly()
    for call in (
        {"id": "a", "function": {"name": "one", "arguments": '{"x"'}},
        {"function": {"arguments": ": 1}"}},
        {"id": "b", "function": {"name": "two", "arguments": {"y": 2}}},
        {"function": {"name": "three", "arguments": ""}},
    ):
        found.add_piece(json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]}).encode())
    assert found.reply().tool_calls == (
        ToolCall("a", "one", '{"x": 1}'),
        ToolCall("b", "two", '{"y": 2}'),
        ToolCall("", "three", ""),
    )


def test_calls_with_the_same_index_are_separated_by_id():
    found = ReplyAssembly()
    for call in (
        {"index": 0, "id": "a", "function": {"name": "one", "arguments": ""}},
        {"index": 0, "id": "not a", "function": {"arguments": "{}"}},
        {"index": 0, "id": "b", "function": {"name": "one", "arguments": "{"}},
        {"index": 0, "function": {"arguments": "}"}},
    ):
        found.add_piece(json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]}).encode())
    assert found.reply().tool_calls == (ToolCall("a", "one", "{}"), ToolCall("b", "one", "{}"))


def test_calls_are_in_the_order_of_their_index():
    found = ReplyAssembly()
    for index in (2, 0, 1):
        call = {"index": index, "id": f"{index}", "function": {"name": "one"}}
        found.add_piece(json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]}).encode())
    assert [call.id for call in found.reply().tool_calls] == ["0", "1", "2"]


def test_too_many_calls_are_refused():
    calls = [{"id": f"{n}", "function": {"name": "one"}} for n in range(65)]
    piece = json.dumps({"choices": [{"delta": {"tool_calls": calls}}]}).encode()
    with pytest.raises(Unreadable, match="more than 64 tool calls"):
        ReplyAssembly().add_piece(piece)


def test_surrogate_pairs_are_joined_and_lone_surrogates_replaced():
    found = ReplyAssembly()
    for half in (r"\ud83d", r"\udc4b", r"\ud83d"):
        found.add_piece(b'{"choices": [{"delta": {"content": "%s"}}]}' % half.encode())
    assert found.reply().text == "👋\ufffd"


def test_server_sent_events_are_read_as_in_the_standard():
    text = (
        b": comment\r\nevent: x\r\ndata: one\r\n\r\ndata:two\ndata: more\n\n\n\nid: 7\ndata: last"
    )
    events = EventParser()
    found = [data for at in range(len(text)) for data in events.feed(text[at : at + 1])]
    assert [*found, *events.end()] == [b"one", b"two\nmore", b"last"]


def test_an_endless_line_is_refused_before_it_is_kept():
    events = EventParser()
    for _ in range(4):
        assert list(events.feed(b"x" * (1 << 20))) == []
    with pytest.raises(Unreadable, match="longer than 4 MiB"):
        list(events.feed(b"x"))


# ---- choice of the endpoint

_HOME = ModelSettings("http://localhost:11434/v1/", model="home")
_AWAY = ModelSettings("https://models.example/v1", "sk-away-key", model="away")


@pytest.mark.parametrize(
    ("name", "url", "model"),
    [
        ("", "http://localhost:11434/v1/chat/completions", "home"),
        (None, "http://localhost:11434/v1/chat/completions", "home"),
        ("gpt-4o", "http://localhost:11434/v1/chat/completions", "gpt-4o"),
        ("openai/gpt-4o", "http://localhost:11434/v1/chat/completions", "gpt-4o"),
        ("far/x/y", "https://models.example/v1/chat/completions", "x/y"),
        ("far/", "https://models.example/v1/chat/completions", "away"),
        ("far", "http://localhost:11434/v1/chat/completions", "far"),
    ],
)
def test_a_model_name_selects_its_endpoint(name, url, model):
    found = Models(_HOME, {"far": _AWAY}).for_name(name)
    assert (found.url, found.model) == (url, model)


def test_a_router_gets_the_full_model_name():
    router = ModelSettings("http://localhost/v1", strip_provider=False)
    assert Models(router).for_name("openai/gpt-4o").model == "openai/gpt-4o"


@pytest.mark.parametrize(
    ("models", "name", "words"),
    [
        (
            Models(),
            "openai/gpt-4o",
            "no model endpoint is configured for the model 'openai/gpt-4o'",
        ),
        (Models(), None, "no model endpoint is configured for an agent that names no model"),
        (Models(ModelSettings("http://localhost/v1")), "", "name a model"),
    ],
)
def test_a_model_name_without_an_endpoint_names_the_setting(models, name, words):
    with pytest.raises(InvalidConfiguration, match=words) as caught:
        models.for_name(name)
    assert "SANDKASTEN_MODELS_" in caught.value.hint


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("", ""),
        ("localhost:8000/v1", ""),
        ("file:///etc/passwd", ""),
        ("http://[::1", ""),
        ("http://host:99999/v1", ""),
        ("http://me:secret@host/v1", ""),
        ("http://host/v1?key=secret", ""),
        ("http://host/v1", "secret\r\nX-Other: 1"),
    ],
)
def test_an_invalid_endpoint_is_refused_without_repeating_it(url, key):
    with pytest.raises(InvalidConfiguration) as caught:
        ModelSettings(url, key)
    assert "secret" not in str(caught.value)


def test_the_key_is_in_no_repr():
    assert "sk-away-key" not in repr(_AWAY)
    assert "sk-away-key" not in repr(Models(_HOME, {"far": _AWAY}))
