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
        result: list[Any] = []
        for value in list(values)[:_max_points]:
            plain = value.item() if hasattr(value, "item") else value
            usable = isinstance(plain, (int, float)) and abs(plain) < 1e300
            result.append(plain if usable else str(plain))
        return result

    def element(artist: Any, x: Any, y: Any) -> "dict[str, Any]":
        return {"label": str(artist.get_label())[:200], "x": numbers(x), "y": numbers(y)}

    def scale_of(axis: Any) -> "dict[str, Any]":
        name = axis.axis_name
        units = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
        scale, ticks = axis.get_scale(), list(axis.get_ticklocs())[:_max_points]
        if "Date" in type(units).__name__:
            scale = "datetime"
            dates = __import__("matplotlib.dates").dates
            ticks = [dates.num2date(tick).isoformat() for tick in ticks]
        elif "Category" in type(units).__name__:
            scale = "categorical"
        labels = [label.get_text()[:200] for label in axis.get_ticklabels()][:_max_points]
        shown = {"scale": scale, "ticks": numbers(ticks), "tick_labels": labels}
        return {name + "_" + key: value for key, value in shown.items()}

    def boxes_of(axes: Any) -> "list[dict[str, Any]]":
        result: list[dict[str, Any]] = []
        boxes = [patch for patch in axes.patches if type(patch).__name__ == "PathPatch"]
        names = [label.get_text() for label in axes.get_xticklabels()]
        for at, box in enumerate(boxes[:_max_elements]):
            (left, low), (right, high) = box.get_path().get_extents().get_points().tolist()
            item: dict[str, Any] = {"label": (names[at] if at < len(names) else "")[:200]}
            item.update({"min": low, "first_quartile": low, "median": None})
            item.update({"third_quartile": high, "max": high, "outliers": []})
            for line in axes.get_lines()[: 8 * _max_elements]:
                x, y = numbers(line.get_xdata()), numbers(line.get_ydata())
                if not x or not left <= x[0] <= right:
                    continue
                if line.get_linestyle() == "None":
                    item["outliers"] = y
                elif x[0] == x[-1]:
                    item["min"], item["max"] = min(item["min"], *y), max(item["max"], *y)
                elif (x[0], x[-1]) == (left, right):
                    item["median"] = y[0]
            result.append(item)
        return result

    def axes_of(axes: Any) -> "dict[str, Any]":
        kind = "unknown"
        elements: list[dict[str, Any]] = boxes_of(axes)
        if elements:
            kind = "box_and_whisker"
        for line in axes.get_lines()[: 0 if elements else _max_elements]:
            kind = "line"
            elements.append(element(line, line.get_xdata(), line.get_ydata()))
        for group in axes.collections[:_max_elements]:
            if kind != "line" and type(group).__name__ == "PathCollection":
                kind = "scatter"
                points = list(group.get_offsets())
                elements.append(element(group, [p[0] for p in points], [p[1] for p in points]))
        names = [label.get_text() for label in axes.get_xticklabels()]
        for group in axes.containers[:_max_elements]:
            bars = [child for child in group.get_children() if type(child).__name__ == "Rectangle"]
            if bars and kind in ("unknown", "bar"):
                kind = "bar"
                middles = [bar.get_x() + bar.get_width() / 2 for bar in bars]
                heights = [bar.get_height() for bar in bars]
                elements.append(
                    element(group, names if len(names) == len(bars) else middles, heights)
                )
        wedges = [patch for patch in axes.patches if type(patch).__name__ == "Wedge"][:_max_points]
        if wedges and kind == "unknown":
            kind = "pie"
            for wedge in wedges:
                share = numbers([(wedge.theta2 - wedge.theta1) / 360])[0]
                label = {"label": str(wedge.get_label())[:200], "radius": numbers([wedge.r])[0]}
                elements.append({**label, "share": share})
        labels = {"x_label": axes.get_xlabel(), "y_label": axes.get_ylabel()}
        if hasattr(axes, "xaxis"):
            labels.update({**scale_of(axes.xaxis), **scale_of(axes.yaxis)})
        return {"type": kind, "title": axes.get_title(), **labels, "elements": elements}

    def chart(figure: Any) -> Any:
        charts = [axes_of(axes) for axes in figure.axes[:_max_elements]]
        if len(charts) == 1:
            return charts[0]
        above = getattr(figure, "_suptitle", None)
        title = above.get_text() if above is not None else ""
        return {"type": "several", "title": title, "charts": charts}

    def environment(variables: "dict[str, str]") -> None:
        import os

        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        saved.clear()
        saved.update({name: os.environ.get(name) for name in variables})
        os.environ.update(variables)

    saved: dict[str, Any] = {}
    _max_rows, _max_points, _max_elements = _MAX_ROWS, _MAX_POINTS, _MAX_ELEMENTS
    tables = add("application/vnd.sandkasten.data+json", "pandas.core.frame", "DataFrame", table)
    tables.environment = environment
    add("application/vnd.sandkasten.chart+json", "matplotlib.figure", "Figure", chart)


if __name__ == "__main__":
    _sandkasten()
    del importlib, Any, _sandkasten, _MAX_ROWS, _MAX_POINTS, _MAX_ELEMENTS
