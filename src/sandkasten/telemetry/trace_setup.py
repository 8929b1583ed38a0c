"""Whether this process reports spans, and where to.

On if the embedding program has a tracer provider, or if an OTLP endpoint is configured, by
`telemetry.endpoint` or by the standard `OTEL_*` variables. If it is off, nothing of OpenTelemetry
is imported.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidConfiguration
from sandkasten.ports.spans import UNTRACED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.ports.spans import Tracing

log = logging.getLogger("sandkasten.telemetry")
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def open_tracing(
    environment: Mapping[str, str],
    *,
    endpoint: str | None = None,
    protocol: str | None = None,
    content: bool = True,
) -> Tracing:
    """Raise InvalidConfiguration if `endpoint`, of the settings, cannot be served.

    `content`: whether spans show what users sent and got. If only a variable asks for spans,
    which may be meant for other programs, a missing library is a warning.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return UNTRACED
    if "opentelemetry.trace" in sys.modules:
        from sandkasten.telemetry.otel_spans import OtelTracing, provider_of_program

        own = provider_of_program()
        if own is not None:
            return OtelTracing(own, content=content)
    wanted = endpoint or _first(environment, _ENDPOINTS)
    if not wanted or environment.get("OTEL_TRACES_EXPORTER", "otlp").strip() == "none":
        return UNTRACED
    try:
        protocol = protocol or _first(environment, _PROTOCOLS) or "http/protobuf"
        return _sending(protocol, endpoint, content=content)
    except InvalidConfiguration as exc:
        if endpoint is not None:
            raise
        log.warning(
            "telemetry.unavailable", extra={"sandkasten": {"error": exc.message, "hint": exc.hint}}
        )
        return UNTRACED


def _sending(protocol: str, endpoint: str | None, *, content: bool) -> Tracing:
    try:
        from sandkasten.telemetry.otel_spans import OtelTracing, open_provider
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "opentelemetry":
            raise
        from sandkasten.model.optional_extras import install_command

        raise InvalidConfiguration(
            "tracing needs OpenTelemetry, which is not installed",
            hint=install_command("otel"),
            setting="telemetry.endpoint",
        ) from exc
    return OtelTracing(open_provider(protocol, endpoint), content=content)


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environment[name].strip() for name in names if environment.get(name)), None)
