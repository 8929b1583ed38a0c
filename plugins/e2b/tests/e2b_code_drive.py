"""E2B's code interpreter with its published SDK; prints what was seen as JSON.

Runs in the environment of other implementations' clients, with the addresses and the key in the
environment.
"""

import json
import threading
from typing import Any

from e2b import NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import Sandbox

RICH = """
class Rich:
    def _repr_html_(self): return "<b>x</b>"
    def _repr_markdown_(self): return "**x**"
    def _repr_svg_(self): return "<svg/>"
    def _repr_png_(self): return b"png"
    def _repr_latex_(self): return "$x$"
    def _repr_json_(self): return {"x": 1}
    def _repr_javascript_(self): return "x()"
    def _repr_mimebundle_(self, **_): return {"x/y": "own"}
display(Rich())
"""
FRAME = """
class DataFrame:
    __module__ = 'pandas.core.frame'
    def head(self, rows): return self
    def to_json(self, **how): return '{"columns": ["a", "b"], "index": [0], "data": [[1, 2]]}'
class Line:
    get_label = lambda self: 'sold'
    get_xdata = lambda self: [2023, 2024]
    get_ydata = lambda self: [3, 5]
class Axes:
    collections = containers = patches = ()
    get_lines = lambda self: [Line()]
    get_xticklabels = lambda self: []
    get_title = lambda self: 'Sales'
    get_xlabel = lambda self: 'Time (s)'
    get_ylabel = lambda self: ''
class Figure:
    __module__ = 'matplotlib.figure'
    axes = [Axes()]
display(DataFrame(), Figure())
"""


def runs(box):
    lines: list[str] = []
    errors: list[str] = []
    results: list[Any] = []
    first = box.run_code(
        "import os, sys; x = 41; print('out', flush=True); print('err', file=sys.stderr); 'text'",
        on_stdout=lambda one: lines.append(one.line),
        on_stderr=lambda one: errors.append(one.line),
        on_result=results.append,
    )
    again = box.run_code("x + 1")
    seen: dict[str, Any] = {
        "first": [first.text, first.logs.stdout, first.logs.stderr, first.error]
    }
    seen["callbacks"] = [lines, errors, [one.text for one in results]]
    seen["kept"] = [again.text, again.execution_count - first.execution_count]
    failed = box.run_code("1 / 0").error
    seen["error"] = [failed.name, failed.value, "ZeroDivisionError" in failed.traceback]
    seen["env"] = [
        box.run_code("os.environ.get('A', '-')", envs=envs).text for envs in ({"A": "1"}, None)
    ]
    seen["sandbox_env"] = box.run_code("os.environ['OF_SANDBOX']").text
    seen["files"] = [box.run_code("os.getcwd()").text, box.files.read("/home/user/given")]
    rich = box.run_code(RICH).results[0]
    seen["rich"] = {name: rich[name] for name in rich.formats() if name not in ("text", "x/y")}
    seen["extra"] = rich.extra
    frame, figure = box.run_code(FRAME).results
    seen["data"] = frame.data
    chart = figure.chart
    points = [[one.label, one.points] for one in chart.elements]
    seen["chart"] = [chart.type.value, chart.title, chart.x_unit, chart.y_label, points]
    return seen


def ends(box):
    seen: dict[str, Any] = {}
    try:
        box.run_code("import time; kept = 1; time.sleep(1000)", timeout=2)
    except TimeoutException:
        seen["timeout"] = True
    # The code was interrupted with its client, so its context answers at once.
    seen["after"] = box.run_code("kept").text
    try:
        box.run_code("x", language="no-such-language")
    except SandboxException as exc:
        seen["language"] = "language" in str(exc)
    return seen


def contexts(box):
    made = box.create_code_context(cwd="/tmp")
    seen: dict[str, Any] = {
        "cwd": [made.cwd, box.run_code("import os; os.getcwd()", context=made).text]
    }
    seen["apart"] = box.run_code("x", context=made).error.name
    listed = box.list_code_contexts()
    seen["listed"] = [[one.language, one.cwd] for one in listed]
    seen["last"] = listed[-1].id == made.id
    box.run_code("y = 1", context=made)
    box.restart_code_context(made)
    seen["restarted"] = box.run_code("y", context=made).error.name
    box.remove_code_context(made)
    try:
        box.run_code("1", context=made)
    except NotFoundException:
        seen["removed"] = True
    return seen


def end(box):
    threading.Timer(1, box.kill).start()
    try:
        box.run_code("import time; time.sleep(1000)")
    except TimeoutException as exc:
        return "killed" in str(exc)
    return False


def main():
    box = Sandbox.create(timeout=300, envs={"OF_SANDBOX": "1"})
    box.files.write("/home/user/given", "by files")
    seen: dict[str, Any] = {}
    for part in (runs, ends, contexts, end):
        seen[part.__name__] = part(box)
    print(json.dumps(seen))  # noqa: T201


main()
