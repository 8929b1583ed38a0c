"""A bar chart as SVG, readable on a light and on a dark page. Pure.

Bars are logarithmic, because contestants differ by a factor of a thousand. Each bar has its value
and how many times ours it is, so that the picture can be read without the scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Final, Literal

_WIDTH: Final = 820
_LEFT: Final = 210
_RIGHT: Final = 170
_TOP: Final = 58
_LINE: Final = 26
_BAR: Final = 16
_STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 15px; }
.note, .tick { fill: #59636e; font-size: 11px; }
.grid { stroke: #d1d9e0; stroke-width: 1; }
.ours { fill: #0969da; }
.peer { fill: #8c959f; }
.open { fill: #d8dee4; }
.failed { fill: #cf222e; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .note, .tick { fill: #9198a1; }
  .grid { stroke: #3d444d; }
  .ours { fill: #4493f8; }
  .peer { fill: #656c76; }
  .open { fill: #30363d; }
  .failed { fill: #f85149; }
}
"""

Kind = Literal["ours", "peer", "open"]


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float | None
    """None: it has no value, and `shown` says why."""
    shown: str
    kind: Kind
    """Open: a peer without isolation, drawn pale."""


def chart(title: str, unit: str, note: str, bars: list[Bar]) -> str:
    """Return an SVG document. Bars keep the order in which they are given."""
    values = [bar.value for bar in bars if bar.value]
    low = 10 ** math.floor(math.log10(min(values))) if values else 0.1
    high = 10 ** math.ceil(math.log10(max(values))) if values else 1.0
    if high <= low:
        high = low * 10
    height = _TOP + _LINE * len(bars) + 34
    span = _WIDTH - _LEFT - _RIGHT

    def x(value: float) -> float:
        return _LEFT + span * math.log10(max(value, low) / low) / math.log10(high / low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" role="img" aria-labelledby="t d">',
        f'<title id="t">{escape(title)}</title>',
        f'<desc id="d">{escape("; ".join(f"{bar.label}: {bar.shown}" for bar in bars))}</desc>',
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="12" y="24">{escape(title)}</text>',
        f'<text class="note" x="12" y="43">{escape(note)}</text>',
    ]
    bottom = _TOP + _LINE * len(bars)
    tick = low
    while tick <= high * 1.001:
        at = f"{x(tick):.1f}"
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{_TOP - 4}" y2="{bottom}"/>')
        parts.append(
            f'<text class="tick" x="{at}" y="{bottom + 18}" text-anchor="middle">'
            f"{tick:g} {escape(unit)}</text>"
        )
        tick *= 10
    for number, bar in enumerate(bars):
        y = _TOP + _LINE * number
        middle = y + _BAR - 3
        parts.append(
            f'<text x="{_LEFT - 10}" y="{middle}" text-anchor="end">{escape(bar.label)}</text>'
        )
        end = float(_LEFT)
        if bar.value is not None:
            # A value at the lowest tick is still seen.
            end = max(x(bar.value), _LEFT + 2.0)
            parts.append(
                f'<rect class="{bar.kind}" x="{_LEFT}" y="{y}" width="{end - _LEFT:.1f}" '
                f'height="{_BAR}" rx="2"/>'
            )
        kind = "" if bar.value is not None else ' class="failed"'
        parts.append(f'<text{kind} x="{end + 6:.1f}" y="{middle}">{escape(bar.shown)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
