"""The allowed imports between subpackages as a table, and a check for violations."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.repo.tree import Import

CORE = frozenset({"errors", "disk", "model"})
PORTS = CORE | {"ports"}
# A component declares its own settings.
COMPONENT = PORTS | {"settings"}

# What a plugin with routes and commands uses of the server.
SERVER_ROOMS = frozenset({"server.api", "server.daemon", "server.cli"})

# The rooms of the client, `sandkasten`. A room may always import itself.
CLIENT: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "disk": frozenset({"errors"}),
    "model": frozenset({"errors"}),
    "settings": frozenset({"errors", "model"}),
    "ports": frozenset({"errors", "model", "settings"}),
    # It loads what entry points name, and knows no part by name.
    "plugins": frozenset({"errors", "model", "ports", "settings"}),
    "outgoing_http": frozenset(),
    "client": PORTS | {"outgoing_http"},
    "command_line": frozenset({"model"}),
    # What people import: the client, and the errors it raises.
    "__init__": frozenset({"errors", "model", "client"}),
    "sync": frozenset({"client"}),
    # The import path of adapters, which are a distribution of their own.
    "integrations": frozenset({"model"}),
}

# The rooms of the runtime, `sandkasten_runtime`, which also imports rooms of the client.
RUNTIME: dict[str, frozenset[str]] = {
    "wire": frozenset({"errors"}),
    "linux": CORE,
    "engine": COMPONENT | {"wire"},
    "backends": COMPONENT | {"wire", "linux", "plugins"},
    "images": PORTS | {"outgoing_http", "plugins"},
    "store": COMPONENT,
    "telemetry": frozenset({"ports"}),
    # It puts the parts of the runtime together: everything below it, and nothing above.
    "assembly": COMPONENT
    | {"engine", "backends", "images", "store", "telemetry", "linux", "plugins"},
}

# The rooms of the server, and what each may import: also rooms of the client and the runtime.
SERVER: dict[str, frozenset[str]] = {
    "server.api": COMPONENT | {"engine", "plugins"},
    "server.records": PORTS | {"store"},
    # It puts the parts of a daemon together: everything below it, and nothing above.
    "server.daemon": COMPONENT
    | {"assembly", "client", "engine", "images", "outgoing_http", "plugins", "store", "telemetry"}
    | {"server.api", "server.records"},
    "server.cli": PORTS | {"client", "plugins", "__init__", "server.daemon"},
}

# The plugins, by the name of their directory, and the rooms of the core that each may import. A
# plugin imports no other plugin, with one exception.
PLUGINS: dict[str, frozenset[str]] = {
    # An agent is a loop around the tools, so it requires their distribution. Their calls are made
    # with its context and in its sandboxes; a port between the two would repeat the tools.
    "agents": COMPONENT
    | {"assembly", "client", "engine", "outgoing_http", "plugins.tools", "store"}
    | SERVER_ROOMS,
    # The store of images is what it builds into.
    "build": COMPONENT | {"images", "outgoing_http", "server.cli"},
    # Its records have the rules and values of those in files and in SQLite.
    "cluster_store": COMPONENT | {"outgoing_http", "store", "server.records"},
    # Settings of the daemon that it starts as a container.
    "docker": COMPONENT
    | {"assembly", "backends", "linux", "outgoing_http", "wire", "server.cli", "server.daemon"},
    "cloud": COMPONENT | {"backends", "linux", "outgoing_http", "wire"},
    "dagger": COMPONENT | {"backends", "linux", "wire"},
    # Its routes are routes of the daemon.
    "e2b": COMPONENT | {"engine", "server.api"},
    # Its child process writes log lines.
    "otel": frozenset({"errors", "model", "ports", "settings", "telemetry"}),
    # Adapters use what any program can use, and the install command of an extra.
    "integrations": frozenset({"__init__", "sync", "model"}),
    "kubernetes": COMPONENT | {"backends", "linux", "outgoing_http", "wire"},
    # An MCP server works on a daemon, or on an engine that it opens as a daemon does.
    "tools": COMPONENT | {"assembly", "client", "engine", "telemetry"} | SERVER_ROOMS,
}

# Instead of a module of the standard library: open to all.
OPEN = "lazy_dataclass"

# The one door from the client to the runtime, opened lazily.
DOORS: dict[str, frozenset[str]] = {
    "sandkasten.client.server.embedded": frozenset(
        {"errors", "model", "ports", "assembly", "plugins", "server.daemon"}
    ),
    # The command line, if it is installed.
    "sandkasten.command_line": frozenset({"__init__", "model", "server.cli"}),
}

# A library beyond the standard one belongs to one room; nothing else may come to need it.
LIBRARIES: dict[str, frozenset[str]] = {
    "pyseccomp": frozenset({"linux"}),
    "typer": frozenset(
        {"plugins.agents", "plugins.build", "plugins.tools", "plugins.docker", "server.cli"}
    ),
    "rich": frozenset({"plugins.build", "server.cli"}),
    "yaml": frozenset({"assembly", "plugins.agents"}),
    "nodesemver": frozenset({"plugins.build"}),
    "aiohttp": frozenset(
        {"client", "images", "outgoing_http", "server.daemon"}
        | {"plugins.agents", "plugins.build", "plugins.cloud", "plugins.cluster_store"}
        | {"plugins.docker", "plugins.kubernetes"}
    ),
    # The addresses of aiohttp.
    "yarl": frozenset({"images", "plugins.cluster_store"}),
    "aiodocker": frozenset({"plugins.docker"}),
    # E2B's SDK, and the library whose errors it raises.
    "e2b": frozenset({"plugins.cloud"}),
    "httpx": frozenset({"plugins.cloud"}),
    # Modal's SDK, the messages it sends, and the libraries whose errors it raises: of gRPC and,
    # in `google.protobuf`, of messages.
    "modal": frozenset({"plugins.cloud"}),
    "modal_proto": frozenset({"plugins.cloud"}),
    "grpclib": frozenset({"plugins.cloud"}),
    "google": frozenset({"plugins.cloud"}),
    "dagger": frozenset({"plugins.dagger"}),
    "cel": frozenset({"plugins.agents"}),
    "dotpromptz": frozenset({"plugins.agents"}),
    "dotpromptz_handlebars": frozenset({"plugins.agents"}),
    "genkit": frozenset({"plugins.tools"}),
    "jsonschema": frozenset({"plugins.agents", "plugins.tools"}),
    "referencing": frozenset({"plugins.agents"}),
    "jwt": frozenset({"server.api", "server.daemon"}),
    "cryptography": frozenset({"backends", "linux", "plugins.build", "server.daemon", "store"}),
    "mcp": frozenset({"plugins.tools"}),
    # A dependency of the library mcp, whose errors it raises.
    "anyio": frozenset({"plugins.integrations", "plugins.tools"}),
    "asyncpg": frozenset({"plugins.cluster_store"}),
    "h11": frozenset({"server.api"}),
    "websockets": frozenset({"server.api"}),
    "opentelemetry": frozenset({"plugins.otel"}),
    "prometheus_client": frozenset({"server.daemon"}),
    "pydantic": frozenset(
        {"plugins.agents", "plugins.e2b", "plugins.integrations", "plugins.tools", "server.api"}
    ),
    "pydantic_core": frozenset({"plugins.agents", "server.api"}),
    "python_multipart": frozenset({"server.api"}),
    "starlette": frozenset({"plugins.agents", "plugins.e2b", "plugins.tools", "server.api"}),
    "uvicorn": frozenset({"server.daemon"}),
    "uvloop": frozenset({"plugins.tools", "server.daemon"}),
    # Frameworks.
    "agent_framework": frozenset({"plugins.integrations"}),
    "agents": frozenset({"plugins.integrations"}),
    "autogen_core": frozenset({"plugins.integrations"}),
    "claude_agent_sdk": frozenset({"plugins.integrations"}),
    "deepagents": frozenset({"plugins.integrations"}),
    "inspect_ai": frozenset({"plugins.integrations"}),
    "PIL": frozenset({"plugins.integrations"}),
    "pydantic_ai": frozenset({"plugins.integrations"}),
    "smolagents": frozenset({"plugins.integrations"}),
    "swerex": frozenset({"plugins.integrations"}),
}

# Modules of backends/ that are not a backend.
SHARED_BACKEND_MODULES = frozenset(
    {"__init__", "backend_catalog", "gate", "launched_sandboxes", "launched_selftest"}
    | {"lazy_backend", "plugin_rules"}
)

# Those that are public to plugins.
PUBLIC_BACKEND_MODULES = frozenset({"gate", "lazy_backend"})


_ROWS = (
    CLIENT | RUNTIME | SERVER | {f"plugins.{name}": allowed for name, allowed in PLUGINS.items()}
)


def room(module: str) -> str:
    """Return the subpackage of client or runtime, `server.SUBPACKAGE` or `plugins.NAME`."""
    top, *rest = module.split(".")
    if top == "sandkasten_server":
        return f"server.{rest[0]}" if rest else "server"
    if top not in ("sandkasten", "sandkasten_runtime"):
        return f"plugins.{top.removeprefix('sandkasten_')}"
    return rest[0] if rest else "__init__"


def broken(imports: Iterable[Import]) -> list[str]:
    """Return one line for each forbidden import."""
    return [complaint for found in imports for complaint in _complaints(found)]


def _complaints(found: Import) -> list[str]:
    where = f"{found.module}:{found.line}"
    here = room(found.module)
    top = found.target.split(".")[0]
    if not top.startswith("sandkasten"):
        if top in sys.stdlib_module_names or here in LIBRARIES.get(top, frozenset()):
            return []
        return [f"{where} imports the library {top}, which is not its room's"]
    there = room(found.target)
    if here == there == "backends":
        mine, other = found.module.split(".")[2:3], found.target.split(".")[2:3]
        if mine != other and not SHARED_BACKEND_MODULES & {*mine, *(other or ["__init__"])}:
            return [f"{where} is backend {mine[0]} and imports backend {other[0]}"]
        return []
    if there == "backends" and here.startswith("plugins."):
        part = found.target.split(".")[2:3]
        if not PUBLIC_BACKEND_MODULES.issuperset(part or ["__init__"]):
            return [f"{where} ({here}) imports {found.target}, which is not public to plugins"]
    if here == there or there == OPEN:
        return []
    allowed = DOORS.get(found.module) or _ROWS.get(here)
    if allowed is None:
        return [f"{where} lies in {here}, a room without a row in the table of arrows"]
    if there not in allowed:
        return [f"{where} ({here}) imports {found.target} ({there})"]
    return []
