"""How much of a tool's answer a model reads: long strings lose their middle, which is marked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEAST_KEPT: Final = 200
_MOST_DEEP: Final = 50


def truncated_json(answer: Mapping[str, Any], most: int) -> str:
    """Return a tool's answer as JSON of about `most` characters."""
    whole = _text(answer)
    if len(whole) <= most:
        return whole
    keep = most // 2
    while keep >= _LEAST_KEPT:
        cut = {**_shortened(answer, keep, 0), "cut_for_model": True}
        if len(text := _text(cut)) <= most:
            return text
        keep //= 2
    # Many short strings: cut the JSON itself, inside a string.
    content = {"ok": answer.get("ok"), "cut_for_model": True, "answer": shortened(whole, most // 2)}
    return _text(content)


def shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    # The end of an output usually shows more of the result than its beginning.
    head = most // 3
    left_out = len(text) - most
    return f"{text[:head]}\n[… {left_out} characters left out …]\n{text[-(most - head) :]}"


def _shortened(value: Any, keep: int, depth: int) -> Any:
    if isinstance(value, str):
        return shortened(value, keep)
    if depth < _MOST_DEEP and hasattr(value, "items"):
        return {name: _shortened(item, keep, depth + 1) for name, item in value.items()}
    if depth < _MOST_DEEP and isinstance(value, list | tuple):
        return [_shortened(item, keep, depth + 1) for item in value]
    return value


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
