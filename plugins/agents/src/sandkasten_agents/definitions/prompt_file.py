"""An agent's file: frontmatter between two `---` lines, followed by a Handlebars template.

The format is dotprompt with the additional fields `sandbox`, `agents`, `max_steps`, `max_tokens`
and `timeout_seconds`. All errors are found here, before any run: InvalidAgent names the line or the
field; questionable input becomes a warning. The parser uses only the source text: no other file,
setting or clock.
"""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from dotpromptz.picoschema import picoschema_to_json_schema

from sandkasten.errors import InvalidAgent
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.spelling import shown
from sandkasten_agents.definitions import json_schemas, prompt_templates, strict_yaml
from sandkasten_agents.definitions.definition_fields import DefinitionFields
from sandkasten_agents.definitions.sandbox_field import parse_sandbox

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from sandkasten_tools.calls.agent_sandbox import AgentSandbox

MAX_FILE_BYTES: Final = 1024 * 1024
MAX_FRONTMATTER_BYTES: Final = 64 * 1024
MAX_STEPS: Final = 1000
MAX_TOKENS: Final = 1_000_000_000
MAX_TIMEOUT_S: Final = 7 * 86_400.0

AGENT_FIELDS: Final = (
    "model",
    "config",
    "input",
    "output",
    "metadata",
    "tools",
    "agents",
    "max_steps",
    "max_tokens",
    "timeout_seconds",
    "sandbox",
    "name",
    "description",
    "variant",
    "version",
    "ext",
)
_MOST_NAME: Final = 100
_INPUT_FIELDS: Final = ("schema", "default")
_OUTPUT_FIELDS: Final = ("format", "schema")
_FORMATS: Final = ("text", "json")
_EDGE: Final = re.compile(r"---[ \t]*\Z")
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
# Keywords of a JSON Schema without a type; in Picoschema none of them holds a list.
_COMBINING: Final = ("anyOf", "oneOf", "allOf", "enum")


@dataclass(frozen=True, slots=True)
class Agent:
    name: str
    """From metadata.name, the field name, or the file name without its suffix."""
    template: str
    description: str = ""
    model: str | None = None
    """None: the operator's default."""
    config: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    """Model options as in the file: temperature, topP, maxOutputTokens, …"""
    input_schema: Mapping[str, Any] | None = None
    """JSON Schema of the variables, of type object."""
    input_defaults: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    output_schema: Mapping[str, Any] | None = None
    output_format: str = "text"
    """text or json; json when there is a schema."""
    sandbox: AgentSandbox | None = None
    """None: an agent without a sandbox."""
    installed: bool = False
    """Whether the file is the operator's; a client can send one with any name."""
    agents: tuple[str, ...] = ()
    """Names of the agents it may call."""
    tools: tuple[str, ...] | None = None
    """Subset of the tools of its sandbox mode; None: all of them."""
    max_steps: int | None = None
    """Maximum number of model answers in a run; None: the operator's default."""
    max_tokens: int | None = None
    """Token limit of the whole run; None: the operator's default."""
    timeout_s: float | None = None
    """Timeout of the whole run; None: the operator's default."""
    variant: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    ext: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    """Fields with a dot in their name, grouped by the part before the last dot."""
    warnings: tuple[str, ...] = ()
    source: str = ""
    """The complete file."""
    first_line: int = 1
    """Line of the file at which the template begins."""

    @property
    def slug(self) -> str:
        return slug(self.name)


def slug(name: str) -> str:
    """Return the lookup form of a name: case-insensitive, with spaces and dashes alike."""
    return re.sub(r"\s+", "-", name.strip()).casefold()


def parse_agent(text: str | bytes, name: str = "") -> Agent:
    """Parse an agent's file; `name` is the file name without its suffix, used if the file has
    no name.
    """
    what = f"agent {shown(name)}" if name else "the agent"
    source = strict_yaml.checked_text(
        text, max_bytes=MAX_FILE_BYTES, what=what, error=InvalidAgent
    ).replace("\r\n", "\n")
    parts = _split(source, what)
    raw = strict_yaml.load(
        parts.frontmatter,
        max_bytes=MAX_FRONTMATTER_BYTES,
        what=f"the frontmatter of {what}",
        error=InvalidAgent,
        first_line=parts.first_line,
    )
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        raise InvalidAgent(
            f"the frontmatter of {what} is not a mapping", hint="write `name: value` lines"
        )
    prompt_templates.checked_template(parts.template, first_line=parts.template_line)
    return _agent(DefinitionFields(raw), name, source, parts)


@dataclass(frozen=True, slots=True)
class _Parts:
    frontmatter: str
    first_line: int
    template: str
    template_line: int


def _split(source: str, what: str) -> _Parts:
    """Split frontmatter and template. Blank lines and # comments may precede the frontmatter."""
    lines = source.split("\n")
    start = next(
        (at for at, line in enumerate(lines) if line.strip() and not line.startswith("#")), None
    )
    if start is None or not _EDGE.match(lines[start]):
        return _Parts("", 1, source.strip(), 1 + _blank(lines))
    for end in range(start + 1, len(lines)):
        if _EDGE.match(lines[end]):
            body = lines[end + 1 :]
            return _Parts(
                "\n".join(lines[start + 1 : end]),
                start + 2,
                "\n".join(body).strip(),
                end + 2 + _blank(body),
            )
    raise InvalidAgent(
        f"the frontmatter of {what} begins on line {start + 1} but is never closed",
        hint="close it with a line of three dashes",
        line=start + 1,
    )


def _blank(lines: list[str]) -> int:
    """Return the number of leading lines that are blank or comments."""
    return next((at for at, line in enumerate(lines) if line.strip()), 0)


def _agent(fields: DefinitionFields, name: str, source: str, parts: _Parts) -> Agent:
    ext: dict[str, Any] = dict((fields.mapping("ext") or DefinitionFields({})).values)
    for key in [key for key in fields.values if "." in key]:
        space, _, last = key.rpartition(".")
        inner = ext.setdefault(space, {})
        if not isinstance(inner, dict):
            raise fields.wrong(f"ext.{space}", "a mapping", inner)
        inner[last] = fields.values[key]
    allowed = {*AGENT_FIELDS, *(key for key in fields.values if "." in key)}
    warnings = fields.unknown(allowed)
    metadata = fields.mapping("metadata") or DefinitionFields({}, "metadata")
    wanted = fields.mapping("input") or DefinitionFields({}, "input")
    output = fields.mapping("output") or DefinitionFields({}, "output")
    warnings += [*wanted.unknown(_INPUT_FIELDS), *output.unknown(_OUTPUT_FIELDS)]
    input_schema = _schema(wanted)
    if input_schema is not None and input_schema.get("type") != "object":
        raise InvalidAgent(
            "input.schema must be of type object",
            hint="write `input: {schema: {log_data: string}}`",
            field="input.schema",
        )
    output_schema = _schema(output)
    output_format = output.choice("format", _FORMATS)
    if output_schema is not None and output_format == "text":
        raise InvalidAgent(
            "output.format is text, but output.schema describes JSON",
            hint="remove one of them",
            field="output.format",
        )
    sandbox: AgentSandbox | None = None
    if "sandbox" in fields.values:
        sandbox, strange = parse_sandbox(fields.values["sandbox"])
        warnings += strange
    if not parts.template.strip():
        warnings.append("the template is empty: the model receives only the task")
    return Agent(
        name=_name(metadata, fields, name),
        template=parts.template,
        description=metadata.text("description", longest=4000)
        or fields.text("description", longest=4000)
        or "",
        model=fields.text("model", longest=200),
        config=MappingProxyType(dict((fields.mapping("config") or DefinitionFields({})).values)),
        input_schema=input_schema,
        input_defaults=MappingProxyType(
            dict((wanted.mapping("default") or DefinitionFields({})).values)
        ),
        output_schema=output_schema,
        output_format=output_format or ("text" if output_schema is None else "json"),
        sandbox=sandbox,
        agents=fields.texts("agents") or (),
        tools=fields.texts("tools"),
        max_steps=fields.whole("max_steps", low=1, high=MAX_STEPS),
        max_tokens=fields.whole("max_tokens", low=1, high=MAX_TOKENS),
        timeout_s=fields.number("timeout_seconds", low=0.001, high=MAX_TIMEOUT_S),
        variant=fields.text("variant"),
        metadata=MappingProxyType(dict(metadata.values)),
        ext=MappingProxyType(ext),
        warnings=tuple(warnings),
        source=source,
        first_line=parts.template_line,
    )


def _name(metadata: DefinitionFields, fields: DefinitionFields, file_name: str) -> str:
    name = metadata.text("name", longest=_MOST_NAME) or fields.text("name", longest=_MOST_NAME)
    name = name or file_name or "agent"
    if len(name) > _MOST_NAME or not name.isprintable() or name != name.strip():
        raise InvalidAgent(
            f"{shown(name)} is not a valid agent name",
            hint="give metadata.name 1 to 100 printable characters",
            field="metadata.name",
        )
    return name


def _schema(fields: DefinitionFields) -> dict[str, Any] | None:
    """Return a schema as JSON Schema, also if it was written as Picoschema."""
    schema = deepcopy(fields.values.get("schema"))
    path = fields.path("schema")
    if schema is None:
        return None
    combined = isinstance(schema, dict) and any(
        isinstance(schema.get(key), list) for key in _COMBINING
    )
    if not combined and not (isinstance(schema, dict) and ("$ref" in schema or not schema)):
        try:
            schema = _finished(picoschema_to_json_schema(schema))
        except (ValueError, TypeError, AttributeError, LookupError) as exc:
            raise InvalidAgent(
                f"{path} is neither a JSON Schema nor Picoschema: {str(exc)[:200]}",
                hint="write `name: string, what it is`, or a mapping with type and properties; "
                "types are string, number, integer, boolean, null, any",
                field=path,
            ) from exc
    if isinstance(schema, dict) and schema.get("type") == "any":
        del schema["type"]
    return json_schemas.checked_schema(schema, what=path, error=InvalidAgent)


def _finished(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits: the library's parser only waits for a resolver."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise ValueError("named schemas are not supported")
