"""Writes docs/reference, spec and the generated part of sdks/typescript from the code.

.venv/bin/python scripts/reference.py            write
.venv/bin/python scripts/reference.py --check    exit 1 when a page is not what the code says
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference"
TYPESCRIPT = ROOT / "sdks" / "typescript" / "src" / "generated"
_SETTINGS_HEAD = """\
A flag wins over the environment, the environment over the file, the file over the default.
`sandkasten config show --origin` prints each value and where it came from.
The file is `sandkasten.yaml` here, then `/etc/sandkasten/sandkasten.yaml`; a dot
in a name is a level of the file. A duration is seconds, or a string
with units: `500ms`, `30s`, `30m`, `1h30m`, `7d`.
"""
_CLOUD_HEAD = """\
What sandboxes at a provider do not have, or have otherwise. A request for what is refused gets
`UNSUPPORTED_BY_BACKEND` before anything is made; a limit that is not enforced is reported when the
sandbox is created and by `doctor`. [The guide](../guides/cloud.md) shows how to use a provider.
"""
_HTTP_HEAD = """\
From the same table of routes that the daemon serves; `spec/openapi.json` is the whole of it, and
a running daemon shows it at `/docs`. [The guide](../guides/http.md) has examples.

Every route can answer 400 and 422 (`INVALID_REQUEST`), 401 (`UNAUTHORIZED`), 403 (`FORBIDDEN`),
421 (a foreign `Host`), 429 (`QUOTA_EXCEEDED`), 431 (its headers), 500 and 503; one with a body
also 408, 413 and 415. Only what a route can answer beyond that stands with it. Every failing
answer is an [ErrorBody](#errorbody).
"""
_BENCHMARKS_HEAD = """\
[The results](../benchmarks/README.md) have plots, ratios and the result for each goal. `make bench`
produces them: it measures Sandkasten and its peers in turns, in one run of about ten minutes on one
machine, and writes `docs/benchmarks/` (a page, a plot for each row, and `results.json`). It creates
an environment for each framework below `build/`, starts its own dockerd, and stops everything that
it started. A peer that cannot be installed or started is listed with the reason.

- `make bench ARGS="--quick --check"` is the short run: it writes `build/bench/` instead, and fails
  on a missed promise.
- `--only sessions first` measures these sections again and keeps the others; `--resume`
  continues after an interruption, with the sections that this revision has not measured.
- `--without "AutoGen (docker)"` leaves out a contestant, `--without docker` all that need Docker.
- `.venv/bin/python -m benchmarks.report` writes the page and the plots again from `results.json`.
- `.venv/bin/python -m benchmarks.compare REV` measures this checkout against another revision, in
  turns, and prints ratios with their 95 % intervals.

A promise is a ratio to a peer of the same run, or a bound that a slow machine meets as well. Other
goals are shown with the measured value, and a missed one with what takes the time. `results.json`
has the load average before and after each section, and the page says when the machine had other
work.

## What the rows of the comparison mean

Each contestant is a separate process that times itself; one works at a time. A slow one takes
fewer turns. `of ours` is its p50 divided by that of the first contestant, `sandkasten`.

- **one-shot**: a sandbox for `print(1+1)`, its output, and its removal. `sandkasten` has its warm
  pool, which prepares the next sandbox after a request of its kind: one is ready before each turn.
  `sandkasten, cold` has nothing prepared. Peers have no warm pool.
- **one-shot by command line**: a process of `sandkasten run`, without a daemon and with one;
  against `docker run --rm` and `python3 -c`.
- **create, exec true (list), destroy**: measured with one sandbox after another. A peer without a
  sandbox has only commands. AutoGen runs code blocks, and llm-sandbox strings, instead of commands.
- **read, write**: a file of 1 MB and of 50 MB, all of it in the caller's memory. `bare subprocess`
  uses a file of the host; AutoGen and bubblewrap share a directory with the host; raw runc has no
  file operations.
- **commands per second**: eight sandboxes, each driven by a thread.
- **create to first command**: as ComputeSDK defines it, from the call that creates a sandbox to
  the result of the first command in it; `one after another`, `staggered` (every 200 ms) and `burst`
  (all at once), with the share that succeeded.

## What the rows on docker mean

Our sandboxes and the containers of the Docker SDK run on the same dockerd, with the same image and
limits and without a network. Ours are as closed as on every backend (read-only root, no
capabilities, seccomp filter), and their first process is the runner.

- **create, destroy**: `Sandbox(backend="docker")` until the runner answers, and `close()`;
  against `containers.run(detach=True)` and `remove(force=True)`.
- **exec true**: a command in a live session, in its shell (`shell`) and as a list (`argv`);
  against `exec_run`, which has no persistent shell.
- **write, read**: `box.write` and `box.read`; against `put_archive` and `get_archive`.
- **(bind)**: Sandkasten sees the directory of the runner's socket and connects to it. **(volume)**:
  it does not, and reaches the runner through a stream of the Docker Engine, as on a remote one.
- **first use of a store image**: a create that first loads the image into the Docker Engine. It has
  no goal.
- **daemon in a container**: the daemon runs in a container with the socket of the Docker Engine,
  and the SDK calls it over HTTP. `sandkasten` has the volume of all sessions mounted; `sandkasten,
  volumes` reaches each session's own volume through the Docker Engine. The bound is on p95.

## What the rows on Kubernetes mean

`--only cluster` runs them, on the cluster of `make test-cluster`: two nodes on this machine, which
share its processors. The warm pool is off: every sandbox is created on demand.

- **create, destroy**: until the runner answers, and until the Pod is gone; against a Pod with one
  container of the same image, closed in the same way, until it is ready. A `bare Pod` has no
  volume. A `bare Pod with a volume` has one: the kubelet looks every 0.3 s whether volumes are
  mounted, so every Pod to which something can be written waits that long.
- **exec true**: a command in a live session; against `pods/exec`, the protocol of `kubectl exec`.
- **many at once**: a hundred creates at the same time, each with the time that it took, and
  **the last of many**: until all are there. The run fails if one is missing or all are on one node.

## What the rows of networks mean

`--only network` runs them. One client measures itself in turns: on the host (`direct`), in a
sandbox, and in namespaces that `pasta` and `slirp4netns` connect; the server is on loopback, where
a direct connection is fastest. These peers have no rules for names and keep no log.

- **connect**: until the first byte of the server's answer; the name was looked up before.
- **download**: one stream; the time is scaled to 1 GB.
- **create with a network**: with one rule; against a sandbox without a network.
- **a sandbox with a network**: its memory, the egress process included.

## What the rows of agents mean

`--only agents packages expressions` runs them. Peers work in the same sandbox, or on the same data
directory, in shuffled turns. Bounds are wide, because switches between processes take long on
a busy machine.

- **sandbox_exec true**: a call of the tool in this process, in the shell of a live sandbox; against
  `engine.exec`. **over MCP**: the official client and `sandkasten mcp` on stdio; against the
  engine of this process. **over HTTP**: `POST /v1/tools/sandbox_exec`; against
  `POST /v1/sessions/{id}/exec`, both by a raw client.
- **sandbox_run python**: the tool; against `engine.run`, and against `containers.run(remove=True)`.
- **a tool call in an agent's loop**: a run of one tool call with a scripted model; against the
  tool's call alone. The time of the round trips to the model, which a plain client measures, is
  subtracted. Storing a transcript is not included.
- **create with packages, fetched before**: a sandbox with a set of packages that is already
  installed; against one without packages. The first create, which installs them, has no goal.
- **expression that looks at … kB**: an expression of a workflow, in a process with limits; against
  the library of CEL in the calling process, without limits. The first, which starts the process,
  has no goal.
"""
_BACKENDS_HEAD = """\
What each backend can do where everything that it needs is there; `sandkasten doctor` and
`GET /v1/backends` say the same of yours, and whether it is ready. [Choose a
backend](../guides/choosing-a-backend.md) explains how a request gets one.
"""
_PROMISES_HEAD = """\
Each promise of [SPECIFICATION.md](../../SPECIFICATION.md), and the tests that are marked with its
id. A file without names is marked as a whole.
"""
_SEEDS_HEAD = """\
Five documents describe what Sandkasten is to do. These are their requirements, from their own lists
of goals, fields, variables, endpoints and criteria. Each has a state and the tests that show it.
Edit `tests/seeds/requirements.yaml` to change them.
"""
_DEPENDENCIES_HEAD = """\
What other projects bring, from the locks: `requirements/*.txt`, `runner/crates.lock`,
`runner/fuzz/crates.lock` and the `package-lock.json` files. Users install what `sandkasten-…` and
its extras need, and the crates are in the programs of `sandkasten-runtime`. The others build, test
and document.
Purposes and keepers are in `requirements/dependencies.toml`, with the licences that are allowed.
[Contributing](../../CONTRIBUTING.md#dependencies) says how to update them.
"""
_EXAMPLE_HEAD = """\
# Settings of sandkasten, every one with its default. Made by scripts/reference.py.
# Uncomment what should be otherwise (a key and the line of its group), and put the file where
# the daemon looks: sandkasten.yaml beside it, or /etc/sandkasten/sandkasten.yaml.
"""
NOTE = "<!-- made from the code by scripts/reference.py; do not edit -->\n"


def commands() -> str:
    import typer

    from sandkasten_server.cli.command_table import build

    group = typer.main.get_command(build())
    context = group.make_context("sandkasten", [], resilient_parsing=True)
    lines = [NOTE, "# Commands\n"]
    lines.append(_help("sandkasten", group, context))
    for name, command in _walk("sandkasten", group, context):
        lines.append(f"## {name}\n")
        inner = command.make_context(name, [], resilient_parsing=True)  # type: ignore[attr-defined]
        lines.append(_help(name, command, inner))
    return "\n".join(lines)


def benchmarks() -> str:
    sys.path.insert(0, str(ROOT))
    from benchmarks.rows import ROWS, goal_text

    lines = [NOTE, "# Benchmarks\n", _BENCHMARKS_HEAD]
    lines += ["## Goals and promises\n", "| row | section | goal | |", "|---|---|---|---|"]
    lines += [
        f"| {row.operation} | `{row.section}` | {goal.of}: {goal_text(goal, row.unit)} "
        f"| {'promise' if goal.promise else 'goal'} |"
        for row in ROWS
        for goal in row.goals
    ]
    return "\n".join(lines) + "\n"


def backends() -> str:
    from dataclasses import fields

    from sandkasten.model.backends.backend_features import BackendFeatures
    from sandkasten_runtime.backends.backend_catalog import CAPABILITIES

    def shown(value: object) -> str:
        if isinstance(value, tuple):
            return ", ".join(value) or "–"
        if isinstance(value, bool):
            return "yes" if value else "–"
        return str(value)

    lines = [NOTE, "# Backends\n", _BACKENDS_HEAD]
    lines += [
        f"| | {' | '.join(f'`{name}`' for name in CAPABILITIES)} |",
        "|---" * (len(CAPABILITIES) + 1) + "|",
    ]
    levels = (can.isolation for can in CAPABILITIES.values())
    lines.append(f"| isolation | {' | '.join(levels)} |")
    for feature in fields(BackendFeatures):
        if feature.name != "notes":
            cells = (shown(getattr(can.features, feature.name)) for can in CAPABILITIES.values())
            lines.append(f"| {feature.name} | {' | '.join(cells)} |")
    for name, can in CAPABILITIES.items():
        if can.features.notes:
            lines += [f"\n## {name}\n", *(f"- {note}" for note in can.features.notes)]
    return "\n".join(lines) + "\n"


def promises() -> str:
    sys.path.insert(0, str(ROOT))
    from tests.repo import promises as marked
    from tests.repo import tree

    read = marked.read(marked.SPECIFICATION.read_text())
    table = marked.table(read, marked.markers(tree.files(), ROOT))
    return "\n".join([NOTE, "# Promises and their tests\n", _PROMISES_HEAD, table])


def seeds() -> str:
    sys.path.insert(0, str(ROOT))
    from tests.seeds.requirements import FILE, read, tables

    table = tables(read(FILE.read_text()))
    return "\n".join([NOTE, "# Source documents and their tests\n", _SEEDS_HEAD, table])


def _walk(prefix: str, group: object, context: object) -> Iterator[tuple[str, object]]:
    for name in group.list_commands(context):  # type: ignore[attr-defined]
        command = group.get_command(context, name)  # type: ignore[attr-defined]
        yield f"{prefix} {name}", command
        if hasattr(command, "list_commands"):
            inner = command.make_context(f"{prefix} {name}", [], resilient_parsing=True)
            yield from _walk(f"{prefix} {name}", command, inner)


def _help(name: str, command: object, context: object) -> str:
    context.info_name = name  # type: ignore[attr-defined]
    context.terminal_width = 96  # type: ignore[attr-defined]
    context.max_content_width = 96  # type: ignore[attr-defined]
    text = command.get_help(context)  # type: ignore[attr-defined]
    return "```text\n" + "\n".join(line.rstrip() for line in text.splitlines()) + "\n```\n"


def cloud() -> str:
    from importlib import import_module

    lines = [NOTE, "# Providers of machines\n", _CLOUD_HEAD]
    packages = ROOT / "plugins" / "cloud" / "src" / "sandkasten_cloud"
    for path in sorted(packages.glob("*/*_traits.py")):
        name = path.parent.name
        traits = import_module(f"sandkasten_cloud.{name}.{path.stem}").TRAITS
        lines += [f"## {traits.title} (`backend: {name}`)", ""]
        lines += ["| subject | | why | instead |", "|---|---|---|---|"]
        for trait in traits.differences:
            lines.append(f"| {trait.subject} | {trait.kind} | {trait.what} | {trait.hint} |")
        for gap in traits.unenforced:
            lines.append(f"| limit: {gap.limit} | not enforced | {gap.reason} | {gap.remedy} |")
        lines.append("")
    return "\n".join(lines)


def errors() -> str:
    rows = json.loads((ROOT / "spec" / "errors.json").read_text())["errors"]
    lines = [NOTE, "# Errors\n", "Every failure raised on purpose, from `spec/errors.json`.\n"]
    lines.append("| code | class | HTTP | retryable | means | hint |")
    lines.append("|---|---|---|---|---|---|")
    lines += [
        f"| `{r['code']}` | `{r['class']}` | {r['status']} | {'yes' if r['retryable'] else 'no'} "
        f"| {r['meaning']} | {r['hint']} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


def settings() -> str:
    from sandkasten_runtime.assembly.settings.resolver import documented

    lines = [NOTE, "# Settings\n"]
    lines.append(_SETTINGS_HEAD)
    lines.append("| setting | means | environment | default |")
    lines.append("|---|---|---|---|")
    for setting in documented():
        variables = ", ".join(f"`{variable}`" for variable in setting.variables)
        default = (
            ", ".join(setting.default) if isinstance(setting.default, list) else setting.default
        )
        shown = "–" if default in (None, "") else default
        lines.append(f"| `{setting.name}` | {setting.doc} | {variables} | {shown} |")
    return "\n".join(lines) + "\n"


def example() -> str:
    """Every key of the settings file, with its default, commented out."""
    from sandkasten_runtime.assembly.settings.resolver import documented

    rooms: dict[str, list[str]] = {}
    for setting in documented():
        room, _, key = setting.name.rpartition(".")
        value: object = "/var/lib/sandkasten" if setting.name == "data_dir" else setting.default
        if setting.name in ("images.registries", "images.aliases", "backends.docker.engines"):
            value = {}
        shown = "" if value is None else " " + json.dumps(value)
        indent = "  " * len(room.split(".")) if room else ""
        rooms.setdefault(room, []).append(f"{indent}# {setting.doc}\n#{indent}{key}:{shown}\n")
    lines = [_EXAMPLE_HEAD]
    above: list[str] = []
    # Parts of one room may come from several plugins; YAML has each head once.
    heads_in_order = list(dict.fromkeys(room.partition(".")[0] for room in rooms))
    for room in sorted(rooms, key=lambda room: heads_in_order.index(room.partition(".")[0])):
        keys = rooms[room]
        parts = room.split(".") if room else []
        # What this room shares with the one before it goes on under the same head.
        opened = len(os.path.commonprefix([above, parts]))
        heads = [f"#{'  ' * depth}{part}:\n" for depth, part in enumerate(parts)]
        lines.append("\n".join(heads[opened:] + keys))
        above = parts
    return "\n".join(lines)


def sdk() -> str:
    import sandkasten
    from sandkasten import sync

    lines = [NOTE, "# Python SDK\n"]
    lines.append(
        "Each class has an asynchronous twin (`AsyncSandbox`, `AsyncImages`, `AsyncWorkspaces`, "
        "`AsyncStoredFiles`)"
    )
    lines.append("with the same methods to await; a test holds the two together.\n")
    lines += _class("Sandbox", sandkasten.Sandbox)
    lines.append(_entry("##", "run", sandkasten.run))
    lines += _class("Images", sandkasten.Images)
    lines += _class("Workspaces", sandkasten.Workspaces)
    lines += _class("StoredFiles", sandkasten.StoredFiles)
    lines += _class("SandboxClient", sync.SandboxClient)
    lines.append(
        "`sandkasten.SandboxClient` is asynchronous; this is its twin, `sandkasten.sync`. Its "
        "sessions have every method of `Sandbox`, and:\n"
    )
    lines.append(_entry("###", "Session.destroy", sync.Session.destroy))
    lines.append(_entry("###", "Session.upload", sync.Session.upload))
    return "\n".join(lines)


def http() -> str:
    from sandkasten_server.api.response.openapi_document import document
    from sandkasten_server.api.routes.route_table import route_table

    described = document(route_table().routes, _version())
    shared = described["components"]["responses"]
    lines = [NOTE, "# HTTP\n", _HTTP_HEAD]
    for tag in (entry["name"] for entry in described["tags"]):
        lines.append(f"## {tag}\n")
        for path, item in described["paths"].items():
            for method, about in item.items():
                if tag in about["tags"]:
                    lines += _route(path, method, about, shared)
    lines.append("## Schemas\n")
    for name, schema in described["components"]["schemas"].items():
        lines += _schema(name, schema)
    return "\n".join(lines).rstrip() + "\n"


def dependencies() -> str:
    sys.path.insert(0, str(ROOT))
    from scripts.dependencies import page

    return "\n".join([NOTE, "# Dependencies\n", _DEPENDENCIES_HEAD, *page()])


def _route(path: str, method: str, about: dict[str, Any], shared: dict[str, Any]) -> list[str]:
    verb = "WS" if about.get("x-websocket") else method.upper()
    lines = [f"### {verb} {path}\n", about["summary"] + ".\n"]
    if about.get("description"):
        lines.append(about["description"] + "\n")
    parameters = [parameter for parameter in about["parameters"] if parameter["in"] != "path"]
    if parameters:
        lines += [
            f"- {parameter['in']} `{parameter['name']}`: {_about(parameter)}"
            for parameter in parameters
        ] + [""]
    for kind, media in about.get("requestBody", {}).get("content", {}).items():
        lines.append(f"- takes `{kind}`{_linked(media['schema'])}")
    failures = []
    for status, response in about["responses"].items():
        if "$ref" in response:
            description = shared[response["$ref"].rpartition("/")[2]]["description"]
            if not response["$ref"].endswith(f"/Error{status}"):
                failures.append(f"{status} {description}")
            continue
        types = ", ".join(
            f"`{k}`{_linked(v['schema'])}" for k, v in response.get("content", {}).items()
        )
        lines.append(f"- {status}: {types or response['description']}")
    if failures:
        lines.append("- fails with " + "; ".join(failures))
    scope = about.get("x-scope")
    lines.append(f"- needs the scope `{scope}`\n" if scope else "- needs no key\n")
    return lines


def _schema(name: str, schema: dict[str, Any]) -> list[str]:
    lines = [f"### {name}\n"]
    if schema.get("description"):
        lines.append(schema["description"] + "\n")
    needed = schema.get("required", ())
    lines += ["| field | type | |", "|---|---|---|"]
    for field, value in schema.get("properties", {}).items():
        mark = " (required)" if field in needed else ""
        lines.append(f"| `{field}` | {_kind(value)} | {value.get('description', '')}{mark} |")
    return [*lines, ""]


def _about(parameter: dict[str, Any]) -> str:
    text = parameter.get("description", "")
    return f"{_kind(parameter['schema'])}{'. ' + text if text else ''}"


def _linked(schema: dict[str, Any]) -> str:
    kind = _kind(schema)
    return "" if kind in ("string", "any") else f" {kind}"


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(choice) for choice in schema["anyOf"]))
    kind = schema.get("type", "any")
    if kind == "array":
        return "array of " + _kind(schema.get("items", {}))
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return "object of " + _kind(schema["additionalProperties"])
    return str(kind)


def _version() -> str:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return str(project["project"]["version"])


def openapi() -> str:
    from sandkasten_server.api.response.openapi_document import document
    from sandkasten_server.api.routes.route_table import route_table

    return (
        json.dumps(document(route_table().routes, _version()), indent=1, ensure_ascii=False) + "\n"
    )


def _typescript(module: str) -> str:
    sys.path.insert(0, str(ROOT))
    from scripts import typescript

    page: str = getattr(typescript, module)()
    return page


def tool(name: str) -> str:
    """The schema of a tool's arguments."""
    from sandkasten_tools.calls.tool_schemas import TOOLS

    return json.dumps(TOOLS[name].parameters, indent=1, ensure_ascii=False) + "\n"


def _tools() -> dict[Path, Callable[[], str]]:
    from sandkasten_tools.calls.tool_schemas import TOOLS

    place = ROOT / "spec" / "tools"
    place.mkdir(exist_ok=True)
    return {place / f"{name}.json": partial(tool, name) for name in TOOLS}


def _class(title: str, kind: type) -> list[str]:
    signature = _signature(kind.__init__)  # type: ignore[misc]
    lines = [f"## {title}\n\n```python\n{title}{signature}\n```\n"]
    for name, member in inspect.getmembers(kind):
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            lines.append(f"### {name}\n\n{_first(member.fget)}\n")
        elif callable(member):
            lines.append(_entry("###", name, member))
    return lines


def _entry(level: str, name: str, of: object) -> str:
    return f"{level} {name}\n\n```python\n{name}{_signature(of)}\n```\n\n{_first(of)}\n"


def _signature(of: object) -> str:
    signature = inspect.signature(of)  # type: ignore[arg-type]
    parameters = [p for n, p in signature.parameters.items() if n not in ("self", "cls")]
    text = str(signature.replace(parameters=parameters)).replace("'", "")
    if len(text) < 90:
        return text
    head, _, tail = text.rpartition(")")
    return "(\n    " + ",\n    ".join(_split(head[1:])) + ",\n)" + tail


def _split(text: str) -> list[str]:
    """At the commas of the outermost level."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += c in "[({"
        depth -= c in "])}"
        if c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()]


def _first(of: object) -> str:
    return inspect.getdoc(of) or ""


def main() -> int:
    pages: dict[Path, Callable[[], str]] = {
        PAGES / "commands.md": commands,
        PAGES / "cloud.md": cloud,
        PAGES / "errors.md": errors,
        PAGES / "settings.md": settings,
        PAGES / "sdk.md": sdk,
        PAGES / "http.md": http,
        PAGES / "benchmarks.md": benchmarks,
        PAGES / "backends.md": backends,
        PAGES / "promises.md": promises,
        PAGES / "seeds.md": seeds,
        PAGES / "dependencies.md": dependencies,
        ROOT / "deploy" / "sandkasten.yaml": example,
        ROOT / "spec" / "openapi.json": openapi,
        **_tools(),
        # From the specification, which is written above.
        PAGES / "typescript.md": lambda: f"{NOTE}\n{_typescript('reference_page')}",
        TYPESCRIPT / "schema.ts": partial(_typescript, "type_module"),
        TYPESCRIPT / "error_classes.ts": partial(_typescript, "error_module"),
        TYPESCRIPT / "model_tables.ts": partial(_typescript, "table_module"),
    }
    stale = []
    PAGES.mkdir(parents=True, exist_ok=True)
    for path, make in pages.items():
        text = make()
        if "--check" in sys.argv[1:]:
            if not path.exists() or path.read_text() != text:
                stale.append(path.name)
        else:
            path.write_text(text)
    if stale:
        sys.stderr.write(f"docs/reference is not what the code says: {', '.join(stale)}\n")
        sys.stderr.write("hint: run .venv/bin/python scripts/reference.py\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
