"""Errors of model endpoints: whether they are transient, and which error class they become. Pure.

Messages come from the endpoint: they are bounded and contain neither control characters nor the
key. Transient errors are ModelUnavailable; all others are different classes.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidConfiguration, ModelUnavailable, RunFailed
from sandkasten.lazy_dataclass import dataclass
from sandkasten_agents.chat.chat_wire import Unreadable, decoded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.errors import SandkastenError
    from sandkasten_agents.chat.model_settings import ModelSettings

MOST_SHOWN: Final = 500
_PASSING: Final = frozenset({408, 409, 425, 429})
_TOO_LONG: Final = re.compile(
    r"context.{0,20}(length|window|size)|maximum.{0,20}tokens|too many tokens|prompt is too long",
    re.IGNORECASE | re.DOTALL,
)
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")


@dataclass(frozen=True, slots=True)
class EndpointRefusal:
    status: int
    """0: the error was in the stream of an answer that had started."""
    message: str = ""
    code: str = ""
    param: str = ""

    @property
    def is_transient(self) -> bool:
        """Return whether the same request may succeed later."""
        if self.code == "insufficient_quota":
            return False
        return self.status in _PASSING or self.status >= 500 or self.status == 0

    def about(self, word: str) -> bool:
        return self.status in (400, 422) and (self.param == word or word in self.message)


def shown(text: object, settings: ModelSettings) -> str:
    words = _UNPRINTABLE.sub(" ", str(text)).encode("utf-8", "replace").decode()
    cut = without_key(words[: MOST_SHOWN * 8], settings).strip()
    return cut if len(cut) <= MOST_SHOWN else cut[:MOST_SHOWN] + " …"


def without_key(text: str, settings: ModelSettings) -> str:
    # A shorter key is not a secret, and it would occur inside other words.
    key = settings.api_key
    return text.replace(key, "***") if len(key) >= 8 else text


def refusal_of(status: int, raw: bytes | object, settings: ModelSettings) -> EndpointRefusal:
    """Parse `{"error": {…}}` in all its variants, or any text."""
    body: Any = raw
    if isinstance(raw, bytes):
        try:
            body = decoded(raw)
        except Unreadable:
            return EndpointRefusal(
                status, shown(raw[: MOST_SHOWN * 8].decode("utf-8", "replace"), settings)
            )
    if isinstance(body, list) and body:
        body = body[0]
    if isinstance(body, dict) and body.get("error"):
        body = body["error"]
    if not isinstance(body, dict):
        return EndpointRefusal(status, shown(body, settings))
    code = body.get("code")
    return EndpointRefusal(
        status,
        shown(body.get("message") or body.get("detail") or "", settings),
        shown(code if isinstance(code, str) else body.get("type") or "", settings),
        shown(body.get("param") or "", settings),
    )


def error_of(refusal: EndpointRefusal, settings: ModelSettings) -> SandkastenError:
    detail = f": {refusal.message}" if refusal.message else ""
    number = f" ({refusal.status})" if refusal.status else ""
    who = f"the model endpoint {settings.shown}"
    if refusal.is_transient:
        return ModelUnavailable(
            f"{who} is temporarily unavailable{number}{detail}",
            hint="try again later; the endpoint may be overloaded or rate-limited",
            status=refusal.status,
        )
    if refusal.status in (401, 403):
        return InvalidConfiguration(
            f"{who} rejected the key{number}{detail}",
            hint=f"check {settings.key_name or settings.url_name} and the permissions of the key",
            status=refusal.status,
        )
    if refusal.status in (404, 405) or 300 <= refusal.status < 400:
        number += "; it redirects, and redirects are not followed" if refusal.status < 400 else ""
        return InvalidConfiguration(
            f"{who} has no chat completions for the model {settings.model!r}{number}{detail}",
            hint=f"check {settings.url_name} (with /v1 if the endpoint has one) and `model:`",
            status=refusal.status,
        )
    if refusal.status in (400, 413, 422) and is_context_overflow(refusal):
        return RunFailed(
            f"the conversation does not fit the context window of {settings.model!r}{detail}",
            hint="return less from tools (max_bytes, head, grep), split the task, or use a model "
            "with a larger window",
            status=refusal.status,
            reason="context_length",
        )
    if refusal.code == "insufficient_quota":
        return RunFailed(
            f"{who} rejected the request: the account's quota is used up{detail}",
            hint="waiting does not help; check the account",
            status=refusal.status,
        )
    return RunFailed(
        f"{who} rejected the request{number}{detail}",
        hint=f"the model {settings.model!r} may not support tools, or a value of `config:`",
        status=refusal.status,
    )


def is_context_overflow(refusal: EndpointRefusal) -> bool:
    return refusal.code == "context_length_exceeded" or bool(_TOO_LONG.search(refusal.message))


def without_rejected_field(
    body: Mapping[str, Any], refusal: EndpointRefusal
) -> dict[str, Any] | None:
    """Return the request without the field that the endpoint rejected; None if it is essential.

    Endpoints differ in three fields that do not change the meaning of the request.
    """
    if "max_tokens" in body and "max_completion_tokens" in refusal.message:
        changed = dict(body)
        changed["max_completion_tokens"] = changed.pop("max_tokens")
        return changed
    if "stream_options" in body and refusal.about("stream_options"):
        return {name: value for name, value in body.items() if name != "stream_options"}
    if "response_format" in body and refusal.about("response_format"):
        return _schema_in_prompt(body)
    return None


def _schema_in_prompt(body: Mapping[str, Any]) -> dict[str, Any]:
    changed = dict(body)
    schema = changed.pop("response_format").get("json_schema", {}).get("schema", {})
    instruction = {
        "role": "system",
        "content": "Return the final answer as JSON only, without any other text. "
        f"It must fit this JSON Schema: {json.dumps(schema, ensure_ascii=False, default=str)}",
    }
    # At the front: some chat templates accept system messages only there, but several of them.
    changed["messages"] = [instruction, *changed["messages"]]
    return changed
