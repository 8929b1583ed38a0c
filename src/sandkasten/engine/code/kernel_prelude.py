"""Code that a Python kernel runs first: it adds the forms `data` and `chart` to displayed values,
and a function that sets the environment of one call.

Nothing is imported until code displays such a value. No future import: it would change what the
user's code means.
"""

import importlib
from typing import Any

_MAX_ROWS = 1000
_MAX_POINTS = 5000
_MAX_ELEMENTS = 50


def _sandkasten() -> None:
    formatters = importlib.import_module("IPython.core.formatters")
    traitlets = importlib.import_module("traitlets")
    display = importlib.import_module("IPython").get_ipython().display_formatter

    def add(mime: str, module: str, name: str, convert: Any) -> Any:
        def call(self: Any, value: Any) -> Any:
            # By name, because matplotlib removes its figures from every list of known types.
            for kind in type(value).__mro__:
                if kind.__name__ == name and kind.__module__ == module:
                    try:
                        return convert(value)
                    except Exception:  # noqa: BLE001  (a form less; the others are shown)
                        return None
            return None

        members = {
            "format_type": traitlets.Unicode(mime),
            "print_method": traitlets.ObjectName("_repr_sandkasten_"),
            "_return_type": dict,
            "__call__": call,
        }
        kind = type("Formatter", (formatters.BaseFormatter,), members)
        display.formatters[mime] = kind(parent=display)
        return display.formatters[mime]

    def table(frame: Any) -> Any:
        import json

        return json.loads(frame.head(_max_rows).to_json(orient="split", date_format="iso"))

    def numbers(values: Any) -> "list[Any]":
        found: list[Any] = []
        for value in list(values)[:_max_points]:
            plain = value.item() if hasattr(value, "item") else value
            usable = isinstance(plain, (int, float)) and abs(plain) < 1e300
            found.append(plain if usable else str(plain))
        return found

    def element(artist: Any, x: Any, y: Any) -> "dict[str, Any]":
        return {"label": str(artist.get_label())[:200], "x": numbers(x), "y": numbers(y)}

    def axes_of(axes: Any) -> "dict[str, Any]":
        kind = "unknown"
        elements: list[dict[str, Any]] = []
        for line in axes.get_lines()[:_max_elements]:
            kind = "line"
            elements.append(element(line, line.get_xdata(), line.get_ydata()))
        for group in axes.collections[:_max_elements]:
            if kind != "line" and type(group).__name__ == "PathCollection":
                kind = "scatter"
                points = list(group.get_offsets())
                elements.append(element(group, [p[0] for p in points], [p[1] for p in points]))
        names = [label.get_text() for label in axes.get_xticklabels()]
        for group in axes.containers[:_max_elements]:
            bars = [one for one in group.get_children() if type(one).__name__ == "Rectangle"]
            if bars and kind in ("unknown", "bar"):
                kind = "bar"
                middles = [one.get_x() + one.get_width() / 2 for one in bars]
                heights = [one.get_height() for one in bars]
                elements.append(
                    element(group, names if len(names) == len(bars) else middles, heights)
                )
        wedges = [one for one in axes.patches if type(one).__name__ == "Wedge"][:_max_points]
        if wedges and kind == "unknown":
            kind = "pie"
            for one in wedges:
                share = numbers([(one.theta2 - one.theta1) / 360])[0]
                elements.append({"label": str(one.get_label())[:200], "share": share})
        labels = {"x_label": axes.get_xlabel(), "y_label": axes.get_ylabel()}
        return {"type": kind, "title": axes.get_title(), **labels, "elements": elements}

    def chart(figure: Any) -> Any:
        found = [axes_of(axes) for axes in figure.axes[:_max_elements]]
        return found[0] if len(found) == 1 else {"type": "several", "charts": found}

    def environment(given: "dict[str, str]") -> None:
        import os

        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        saved.clear()
        saved.update({name: os.environ.get(name) for name in given})
        os.environ.update(given)

    saved: dict[str, Any] = {}
    _max_rows, _max_points, _max_elements = _MAX_ROWS, _MAX_POINTS, _MAX_ELEMENTS
    tables = add("application/vnd.sandkasten.data+json", "pandas.core.frame", "DataFrame", table)
    tables.environment = environment
    add("application/vnd.sandkasten.chart+json", "matplotlib.figure", "Figure", chart)


if __name__ == "__main__":
    _sandkasten()
    del importlib, Any, _sandkasten, _MAX_ROWS, _MAX_POINTS, _MAX_ELEMENTS
