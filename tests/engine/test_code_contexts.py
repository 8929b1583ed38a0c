"""Code contexts on the real runner and a real kernel, without isolation."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from sandkasten.errors import (
    Busy,
    ContextNotFound,
    InvalidRequest,
    KernelFailed,
    KernelNotFound,
    PayloadTooLarge,
    QuotaExceeded,
)
from sandkasten.model.commands.code_values import (
    MAX_CONTEXTS,
    CodeDisplay,
    CodeRequest,
    CodeText,
    ContextRequest,
)
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_runtime.engine.code import code_contexts
from sandkasten_runtime.engine.code.bridge_lines import CallLines
from sandkasten_runtime.engine.code.code_contexts import CodeContexts
from tests.engine.injections import GO, World

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P80")]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def opened():
    world = World()
    yield world.engine
    await world.engine.aclose()
    for the_id in await world.backend.real.owned():
        await world.backend.real.discard(the_id)


@pytest.fixture(scope="module")
async def engine(anyio_backend):
    async with opened() as one:
        yield one


@pytest.fixture(scope="module")
async def box(engine):
    """A sandbox that all tests of this file use, because a kernel takes a second to start."""
    return (await engine.create(CreateRequest())).id


@pytest.fixture
def run(engine, box):
    async def call(code: str, show=None, **more):
        return await engine.code.run(box, CodeRequest(code, **more), show)

    return call


async def test_variables_stay_and_calls_are_counted(run):
    first = await run("x = 41")
    assert (first.status, first.text, first.results, first.error) == ("ok", None, (), None)
    second = await run("x + 1")
    assert second.results == (CodeDisplay(text="42", main=True),)
    assert (second.text, second.context_id) == ("42", first.context_id)
    assert second.execution_count == (first.execution_count or 0) + 1


async def test_output_and_results_are_shown_as_they_come(run):
    seen: list[object] = []
    code = "import sys; print('out'); sys.stdout.flush(); print('err', file=sys.stderr); 'end'"
    result = await run(code, seen.append)
    assert (result.stdout, result.stderr, result.text) == ("out\n", "err\n", "'end'")
    assert set(map(type, seen)) == {CodeText, CodeDisplay}
    assert seen[-1] == CodeDisplay(text="'end'", main=True)


async def test_rich_values_have_their_fields(run):
    code = "from IPython.display import *; display(HTML('<b>'), Markdown('*m*'), Latex('$x$'))"
    result = await run(code + "; display({'image/png': 'iVBORw0K'}, raw=True)")
    html, markdown, latex, picture = result.results
    assert (html.html, markdown.markdown, latex.latex) == ("<b>", "*m*", "$x$")
    assert picture == CodeDisplay(png="iVBORw0K")


async def test_an_exception_is_a_result_without_colours(run):
    result = await run("1 / 0")
    assert result.status == "error"
    assert (result.error.name, result.error.value) == ("ZeroDivisionError", "division by zero")
    assert "1 / 0" in result.error.traceback
    assert "\x1b" not in result.error.traceback


async def test_value_of_an_exception_has_the_room_of_a_result(run):
    whole = await run("raise ValueError('x' * 2_000_000)")
    assert (whole.error.value, whole.truncated) == ("x" * 2_000_000, False)
    cut = await run("raise ValueError('x' * 11_000_000)")
    assert (cut.error.value, cut.truncated) == ("x" * 16_384, True)


async def test_the_environment_of_a_call_ends_with_it(run):
    assert (await run("import os; os.environ['A']", env={"A": "b"})).text == "'b'"
    assert (await run("'A' in os.environ")).text == "False"


async def test_a_timeout_interrupts_the_code_and_keeps_the_context(run):
    await run("kept = 1")
    result = await run("while True: pass", timeout_seconds=0.2)
    assert (result.status, result.timed_out) == ("timed_out", True)
    assert not result.kernel_restarted
    assert (await run("kept")).text == "1"


async def test_output_larger_than_the_window_arrives_whole(run):
    result = await run("display({'image/png': 'A' * 3_000_000}, raw=True)")
    assert len(result.results[0].png) == 3_000_000
    assert not result.truncated


async def test_output_over_the_limits_is_cut_and_marked(run):
    result = await run("print('x' * 300_000)")
    assert (len(result.stdout), result.truncated) == (200_000, True)
    result = await run("display({'image/png': 'A' * 20_000_000, 'text/plain': 't'}, raw=True)")
    assert (result.results, result.truncated) == ((CodeDisplay(text="t"),), True)


async def test_two_callers_of_one_context_wait_for_each_other(run):
    results = await asyncio.gather(run("order = [1]"), run("order.append(2)"), run("order"))
    assert results[2].text == "[1, 2]"


async def test_more_callers_than_the_queue_holds_are_refused_as_busy(run, engine, box):
    waits = f"import os, time\nwhile not os.path.exists('{GO}'): time.sleep(0.01)"
    calls = [asyncio.create_task(run(code)) for code in (waits, *["1"] * 20)]
    # None of the others can end before the first one.
    await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    await engine.files.write(box, GO, b"")
    results = await asyncio.gather(*calls, return_exceptions=True)
    refused = [one for one in results if isinstance(one, Busy)]
    assert refused
    ran = [one.status for one in results if not isinstance(one, BaseException)]
    assert ran == ["ok"] * (len(calls) - len(refused))
    assert (await run("1")).text == "1"


async def test_a_caller_that_leaves_interrupts_its_code(run, engine, box):
    begun = asyncio.Event()
    code = "left = 0\nprint('begun', flush=True)\nimport time\ntime.sleep(600)\nleft = 1"
    task = asyncio.create_task(run(code, lambda _: begun.set()))
    await begun.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (await run("left", timeout_seconds=30)).text == "0"


async def test_another_process_finds_the_contexts_again(run, engine, box):
    mine = await run("found = 'again'")
    another = CodeContexts(engine._handles, engine._execution, engine._in_flight)
    [listed] = await another.list(box)
    assert (listed.id, listed.language, listed.default) == (mine.context_id, "python", True)
    assert (await another.run(box, CodeRequest("found"))).text == "'again'"


@pytest.mark.slow
async def test_a_context_of_its_own_is_created_interrupted_restarted_and_removed(engine, box, run):
    code = engine.code
    made = await code.create(box, ContextRequest(cwd="/tmp", env={"OWN": "1"}))
    told = "import os; os.environ['OWN'], os.getcwd()"
    assert (await run(told, context=made.id)).text == "('1', '/tmp')"
    begun = asyncio.Event()
    waits = "print('begun', flush=True)\nimport time\ntime.sleep(600)"
    task = asyncio.create_task(run(waits, lambda _: begun.set(), context=made.id))
    await begun.wait()
    await code.interrupt(box, made.id)
    assert (await task).status == "interrupted"
    await code.interrupt(box, made.id)
    await code.restart(box, made.id)
    assert (await run("os", context=made.id)).error.name == "NameError"
    assert (await run("import os; os._exit(3)", context=made.id)).error.name == "KernelDied"
    assert (await run("1", context=made.id)).text == "1"
    await code.remove(box, made.id)
    for gone in (run("1", context=made.id), code.remove(box, made.id), code.restart(box, made.id)):
        with pytest.raises(ContextNotFound):
            await gone
    assert made.id not in {one.id for one in await code.list(box)}


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (CodeRequest("1", language="Not a name"), InvalidRequest),
        (CodeRequest("x" * (1 << 20) + "x"), PayloadTooLarge),
        (CodeRequest("1", language="klingon", env={"A": "b"}), InvalidRequest),
        (CodeRequest("1", env={"A=": "b"}), InvalidRequest),
        (CodeRequest("1", timeout_seconds=1e9), InvalidRequest),
        (CodeRequest("1", context="../x"), ContextNotFound),
        (CodeRequest("1", context=f"ctx_python_{'0' * 16}"), ContextNotFound),
    ],
)
async def test_a_wrong_request_is_refused_by_name(engine, box, request_, error):
    with pytest.raises(error) as caught:
        await engine.code.run(box, request_)
    assert caught.value.hint


async def test_a_language_without_a_kernel_is_named_with_a_hint(run, engine, box):
    with pytest.raises(KernelNotFound) as caught:
        await run("1", language="klingon")
    assert caught.value.message == "the image has no kernel for klingon (it has: bash, python)"
    assert "/usr/local/share/jupyter/kernels" in caught.value.hint
    assert "klingon" not in {one.language for one in await engine.code.list(box)}


async def test_languages_are_those_of_kernels_in_the_image(engine, box):
    assert await engine.code.languages(box) == ("bash", "python")


async def test_bash_keeps_its_variables_and_separates_its_streams(run):
    """Bash needs no kernel of its own in the image."""
    first = await run("x=5; echo out; echo err >&2; cat", language="sh")
    assert (first.status, first.stdout, first.stderr) == ("ok", "out\n", "err\n")
    second = await run("echo $x $GIVEN; false", language="bash", env={"GIVEN": "it's"})
    assert (second.stdout, second.error.name, second.error.value) == ("5 it's\n", "ExitStatus", "1")
    # A running program and a loop of bash itself: neither is left over.
    for code in ("sleep 600", "while :; do :; done"):
        stopped = await run(code, language="bash", timeout_seconds=0.2)
        assert (stopped.status, stopped.kernel_restarted) == ("timed_out", False)
    assert (await run("echo $x ${GIVEN:-none}", language="bash")).stdout == "5 none\n"
    ended = await run("exit 3", language="bash")
    assert (ended.status, ended.error.name, ended.kernel_restarted) == ("died", "KernelDied", True)
    assert (await run("echo new $x", language="bash")).stdout == "new\n"


async def test_a_kernel_that_needs_ports_gets_them(engine, box, run):
    """By its specification, as one of deno is found."""
    code = (
        "import json, os, sys; assert json.load(open(sys.argv[1]))['transport'] == 'tcp'; "
        "os.execvp('python3', ['python3', '-m', 'ipykernel_launcher', '-f', sys.argv[1]])"
    )
    spec = {"argv": ["python3", "-c", code, "{connection_file}"], "language": "Portly"}
    for name, content in (("portly", spec), ("wrong", {"argv": 1})):
        path = f"/workspace/kernels/{name}/kernel.json"
        await engine.files.write(box, path, json.dumps(content).encode())
    made = await engine.code.create(
        box, ContextRequest("portly", env={"JUPYTER_PATH": "/workspace"})
    )
    assert (await run("6 * 7", context=made.id)).text == "42"
    await engine.code.remove(box, made.id)


async def test_a_context_counts_as_a_command_of_its_sandbox(run, engine, box):
    the_id = (await run("1")).context_id
    states = {one.exec_id: one.status for one in await engine.execs(box)}
    assert states[the_id] == "running"


FALSE_CONTEXT = """
import json, os, sys
asked = json.loads(sys.stdin.readline())
os.write(1, {answer})
sys.stdin.readline()
"""


@pytest.mark.parametrize(
    "answer",
    [
        "b'not JSON\\n' * 3",
        "b'{}\\n' + b'x' * 300_000 + b'\\n'",
        "json.dumps({'call': asked['call'], 'type': 'done', 'status': 'no'}).encode() + b'\\n'",
        "json.dumps({'call': asked['call'], 'type': 'result'}).encode() + b'\\n'",
        "b'{}\\n' + json.dumps({'call': asked['call']}).encode('utf-16') + b'\\n'",
    ],
)
async def test_a_context_that_sends_false_messages_is_a_named_error(engine, box, run, answer):
    the_id = "ctx_python_" + "1" * 16
    the_id = the_id[:-4] + f"{abs(hash(answer)) % 0xFFFF:04x}"
    program = ("python3", "-c", FALSE_CONTEXT.format(answer=answer))
    request = ExecRequest(program, keep_stdin_open=True)
    await engine._execution.start(box, request, exec_id=the_id)
    with pytest.raises(KernelFailed):
        await run("1", context=the_id)
    assert (await engine.exec_get(box, the_id)).status == "killed"


async def test_a_context_that_never_answers_ends_by_its_time(engine, box, run, monkeypatch):
    monkeypatch.setattr(code_contexts, "ANSWER_SLACK_S", 0.3)
    the_id = "ctx_python_" + "2" * 16
    request = ExecRequest(("sleep", "600"), keep_stdin_open=True)
    await engine._execution.start(box, request, exec_id=the_id)
    with pytest.raises(KernelFailed, match="did not answer"):
        await run("1", context=the_id, timeout_seconds=0.1)
    assert (await engine.exec_get(box, the_id)).status == "killed"


async def test_an_interrupt_that_is_not_read_is_a_named_error(engine, box, monkeypatch):
    monkeypatch.setattr(code_contexts, "_CANCEL_S", 0.2)
    the_id = "ctx_python_" + "3" * 16
    request = ExecRequest(("sleep", "600"), keep_stdin_open=True)
    await engine._execution.start(box, request, exec_id=the_id)
    _, channel = await engine._handles.connect(box)
    fields = {"exec_id": the_id, "close": False}
    filling = asyncio.create_task(channel.call("exec.stdin", fields, data=b"x" * 1_000_000))
    async with asyncio.timeout(30):
        with pytest.raises(KernelFailed, match="did not take the interrupt"):
            await engine.code.interrupt(box, the_id)
    filling.cancel()
    await asyncio.gather(filling, return_exceptions=True)
    await engine.code.remove(box, the_id)


async def test_a_flood_of_lines_leaves_turns_to_others(engine):
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    lines = CallLines("a", 0, 0)
    await engine.code._take(None, "", lines, b"{}\n" * 100_000, None)
    counting.cancel()
    assert turns > 30


async def test_a_value_with_too_many_parts_is_shown_as_text(run):
    show = "display({'application/json': %s, 'text/plain': 'many, [or] {few}'}, raw=True)"
    many = await run(show % "[[]] * 250_000")
    assert (many.results, many.truncated) == ((CodeDisplay(text="many, [or] {few}"),), True)
    few = await run(show % "[[], 1.5]")
    assert (few.results[0].json, few.truncated) == ([[], 1.5], False)


async def test_a_default_context_that_was_killed_is_replaced(engine, box, run):
    before = await run("gone = 1")
    await engine.exec_signal(box, before.context_id, 9)
    after = await run("'gone' in globals()")
    assert (after.text, after.execution_count) == ("False", 1)
    assert after.context_id != before.context_id


# The attributes of pandas 1.5 and matplotlib 3.6 that are read, without installing them.
TABLE_AND_FIGURE = """
class DataFrame:
    __module__ = 'pandas.core.frame'
    def head(self, rows):
        return self
    def to_json(self, **how):
        return '{"columns": ["a"], "index": [0], "data": [[1]]}'
class Line:
    get_label = lambda self: 'sold'
    get_xdata = lambda self: [2023, 2024]
    get_ydata = lambda self: [3, float('nan')]
class Axes:
    collections = containers = patches = ()
    get_lines = lambda self: [Line()]
    get_xticklabels = lambda self: []
    get_title = lambda self: 'Sales'
    get_xlabel = lambda self: 'year'
    get_ylabel = lambda self: ''
class Figure:
    __module__ = 'matplotlib.figure'
    axes = [Axes()]
class Broken(Figure):
    axes = [None]
display(DataFrame(), Figure(), Broken(), object())
"""


async def test_a_table_has_its_data_and_a_figure_its_chart(run):
    table, figure, broken, other = (await run(TABLE_AND_FIGURE)).results
    assert table.data == {"columns": ["a"], "index": [0], "data": [[1]]}
    assert figure.chart == {
        "type": "line",
        "title": "Sales",
        "x_label": "year",
        "y_label": "",
        "elements": [{"label": "sold", "x": [2023, 2024], "y": [3, "nan"]}],
    }
    assert (broken.chart, broken.text is None, other.data, other.chart) == (None, False, None, None)


async def test_contexts_that_start_at_once_are_counted(monkeypatch):
    async with opened() as engine:
        box = (await engine.create(CreateRequest())).id
        started: list[str] = []

        async def listed(*_: object) -> tuple[str, ...]:
            await asyncio.sleep(0)
            return tuple(started)

        async def start(_: str, the_id: str, *__: object) -> None:
            await asyncio.sleep(0)
            started.append(the_id)

        monkeypatch.setattr(engine.code, "list", listed)
        monkeypatch.setattr(engine.code._program, "start", start)
        ids = [f"ctx_python_{number:016x}" for number in range(40)]
        starting = (engine.code._start(box, one, ContextRequest()) for one in ids)
        found = await asyncio.gather(*starting, return_exceptions=True)
        assert len(started) == MAX_CONTEXTS
        assert sum(isinstance(one, QuotaExceeded) for one in found) == 40 - MAX_CONTEXTS
