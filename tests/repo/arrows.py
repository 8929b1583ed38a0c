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

# A room may always import itself.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "disk": frozenset({"errors"}),
    "model": frozenset({"errors"}),
    "settings": frozenset({"errors", "model"}),
    "ports": frozenset({"errors", "model", "settings"}),
    "wire": frozenset({"errors"}),
    "linux": CORE,
    "engine": COMPONENT | {"wire"},
    "backends": COMPONENT | {"wire", "linux"},
    "images": COMPONENT | {"linux"},
    "store": COMPONENT,
    "telemetry": PORTS,
    "agents": COMPONENT | {"engine"},
    "api": COMPONENT | {"engine"},
    # Protocols of other services: routes of the same application.
    "compat": COMPONENT | {"engine", "api"},
    # It puts the parts together: everything below it, and nothing above.
    "daemon": COMPONENT
    | {"engine", "backends", "images", "store", "telemetry", "linux", "agents", "api", "compat"},
    "client": PORTS,
    # An adapter beside the command line: on a daemon through the client, or on an engine here.
    "mcp": PORTS | {"client", "daemon", "agents", "engine", "api", "telemetry"},
    # The root package is the client's public face.
    "cli": PORTS | {"client", "mcp", "__init__"},
    # What people import: the client, and the errors it raises.
    "__init__": CORE | {"client"},
    "sync": frozenset({"client"}),
    # Adapters use what any program can use.
    "integrations": frozenset({"__init__", "sync"}),
}

# Instead of a module of the standard library: open to all.
OPEN = "lazy_dataclass"

# The one door from the client to the engine, opened lazily.
DOORS: dict[str, frozenset[str]] = {
    "sandkasten.client.server.embedded": PORTS | {"engine", "daemon"},
    # The install command of an extra.
    "sandkasten.integrations.framework_import": frozenset({"model"}),
}

# A library beyond the standard one belongs to one room; nothing else may come to need it.
LIBRARIES: dict[str, frozenset[str]] = {
    "pyseccomp": frozenset({"linux"}),
    "typer": frozenset({"cli"}),
    "rich": frozenset({"cli"}),
    "yaml": frozenset({"daemon", "agents"}),
    "nodesemver": frozenset({"images"}),
    "aiohttp": frozenset({"client", "backends", "agents", "images", "daemon", "store"}),
    # The addresses of aiohttp.
    "yarl": frozenset({"images", "store"}),
    "aiodocker": frozenset({"backends"}),
    # E2B's SDK, and the library whose errors it raises.
    "e2b": frozenset({"backends"}),
    "httpx": frozenset({"backends"}),
    # Modal's SDK, the messages it sends, and the libraries whose errors it raises: of gRPC and,
    # in `google.protobuf`, of messages.
    "modal": frozenset({"backends"}),
    "modal_proto": frozenset({"backends"}),
    "grpclib": frozenset({"backends"}),
    "google": frozenset({"backends"}),
    "dagger": frozenset({"backends"}),
    "cel": frozenset({"agents"}),
    "dotpromptz": frozenset({"agents"}),
    "dotpromptz_handlebars": frozenset({"agents"}),
    "genkit": frozenset({"agents"}),
    "jsonschema": frozenset({"agents"}),
    "referencing": frozenset({"agents"}),
    "jwt": frozenset({"api", "daemon"}),
    "cryptography": frozenset({"backends", "daemon", "images", "linux", "store"}),
    "mcp": frozenset({"mcp"}),
    # A dependency of the library mcp, whose errors it raises.
    "anyio": frozenset({"integrations", "mcp"}),
    "asyncpg": frozenset({"store"}),
    "h11": frozenset({"api"}),
    "websockets": frozenset({"api"}),
    "opentelemetry": frozenset({"telemetry"}),
    "prometheus_client": frozenset({"telemetry"}),
    "pydantic": frozenset({"api", "compat", "integrations"}),
    "pydantic_core": frozenset({"api", "agents"}),
    "python_multipart": frozenset({"api"}),
    "starlette": frozenset({"api", "compat"}),
    "uvicorn": frozenset({"daemon"}),
    "uvloop": frozenset({"daemon", "mcp"}),
    # Frameworks.
    "agent_framework": frozenset({"integrations"}),
    "agents": frozenset({"integrations"}),
    "autogen_core": frozenset({"integrations"}),
    "claude_agent_sdk": frozenset({"integrations"}),
    "deepagents": frozenset({"integrations"}),
    "inspect_ai": frozenset({"integrations"}),
    "PIL": frozenset({"integrations"}),
    "pydantic_ai": frozenset({"integrations"}),
    "smolagents": frozenset({"integrations"}),
    "swerex": frozenset({"integrations"}),
}

# Modules of backends/ that are not a backend.
SHARED_BACKEND_MODULES = frozenset(
    {"__init__", "backend_catalog", "gate", "lazy_backend", "plugin_discovery"}
)


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def broken(imports: Iterable[Import]) -> list[str]:
    """Return one line for each forbidden import."""
    return [complaint for found in imports for complaint in _complaints(found)]


def _complaints(found: Import) -> list[str]:
    where = f"{found.module}:{found.line}"
    here = room(found.module)
    top = found.target.split(".")[0]
    if top != "sandkasten":
        if top in sys.stdlib_module_names or here in LIBRARIES.get(top, frozenset()):
            return []
        return [f"{where} imports the library {top}, which is not its room's"]
    there = room(found.target)
    if here == there == "backends":
        mine, other = found.module.split(".")[2:3], found.target.split(".")[2:3]
        if mine != other and not SHARED_BACKEND_MODULES & {*mine, *(other or ["__init__"])}:
            return [f"{where} is backend {mine[0]} and imports backend {other[0]}"]
        return []
    if here == there or there == OPEN:
        return []
    allowed = DOORS.get(found.module) or MAY_IMPORT.get(here)
    if allowed is None:
        return [f"{where} lies in {here}, a room without a row in the table of arrows"]
    if there not in allowed:
        return [f"{where} ({here}) imports {found.target} ({there})"]
    return []
