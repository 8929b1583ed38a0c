"""Charts of code contexts as E2B's code interpreter describes them. Pure.

A chart comes out of a sandbox, so its shape is checked here: what does not fit is left out.
"""

from __future__ import annotations

import re
from typing import Any, Final

_SEVERAL: Final = "several"
_KINDS: Final = frozenset({"line", "scatter", "bar", "pie", "box_and_whisker"})
_UNIT: Final = re.compile(r"\s\(([^()]{0,100})\)|\[([^][]{0,100})\]")
_QUARTILES: Final = ("min", "first_quartile", "median", "third_quartile", "max", "outliers")


def e2b_chart(chart: object) -> dict[str, Any] | None:
    """Return a chart by E2B's names; None if the value is not a chart."""
    if not isinstance(chart, dict):
        return None
    title = _text(chart.get("title"))
    if chart.get("type") == _SEVERAL:
        parts = [e2b_chart(one) for one in _list(chart.get("charts"))]
        elements = [one for one in parts if one is not None]
        return {"type": "superchart", "title": title, "elements": elements}
    kind = chart.get("type")
    if not isinstance(kind, str) or kind not in _KINDS:
        return {"type": "unknown", "title": title, "elements": []}
    found: dict[str, Any] = {"type": kind, "title": title}
    if kind != "pie":
        for axis in ("x", "y"):
            label = _text(chart.get(f"{axis}_label"))
            found |= {f"{axis}_label": label, f"{axis}_unit": _unit(label)}
    if kind in ("line", "scatter"):
        for axis in ("x", "y"):
            found[f"{axis}_ticks"] = _list(chart.get(f"{axis}_ticks"))
            found[f"{axis}_tick_labels"] = _list(chart.get(f"{axis}_tick_labels"))
            found[f"{axis}_scale"] = chart.get(f"{axis}_scale")
    elements = [one for one in _list(chart.get("elements")) if isinstance(one, dict)]
    found["elements"] = [part for one in elements for part in _element(kind, one)]
    return found


def _element(kind: str, one: dict[str, Any]) -> list[dict[str, Any]]:
    label = one.get("label")
    if kind == "pie":
        share = one.get("share")
        # A larger number could become infinite.
        is_share = isinstance(share, int | float) and 0 <= share <= 1
        angle = round(float(share) * 360, 4) if is_share else None  # type: ignore[arg-type]
        return [{"label": label, "angle": angle, "radius": one.get("radius")}]
    if kind == "box_and_whisker":
        return [{"label": label, **{name: one.get(name) for name in _QUARTILES}}]
    pairs = list(zip(_list(one.get("x")), _list(one.get("y")), strict=False))
    if kind == "bar":
        return [{"label": str(x), "value": y, "group": label} for x, y in pairs]
    return [{"label": label, "points": pairs}]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _unit(label: str | None) -> str | None:
    """Return what a label has in brackets, as in `Time (s)`."""
    found = _UNIT.search(label or "")
    return None if found is None else found[1] or found[2]
