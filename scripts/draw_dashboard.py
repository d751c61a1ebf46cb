"""Draw the dashboard of config/grafana with what a Prometheus holds, where there is no Grafana.

`python -m scripts.draw_dashboard http://127.0.0.1:9090 dashboard.png` asks what the open panels of the JSON ask, and
draws it in their grid, with their units, thresholds, overrides, axes and legends. Grafana draws finer, and scrolls.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import re
import time
from collections.abc import Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from PIL import Image

DASHBOARD = Path(__file__).parents[1] / "config" / "grafana" / "streammoe.json"
COLUMN, ROW, GAP, LINE, CELL, LETTER, DPI = 62, 36, 4, 17, 34, 6.5, 100
"""Size of a cell of the grid, space around a panel, lines of legends and tables, and a letter's width, in pixels."""
SCRAPE = 5.0  # seconds, the data source's `timeInterval`
PAGE, PANEL, TEXT, MUTED, RULE = "#111217", "#181b1f", "#d8d9da", "#9a9ba0", "#33353b"
COLORS = {"green": "#56a64b", "yellow": "#e0b400", "orange": "#ff9830", "red": "#e02f44", "blue": "#5794f2"}
COLORS |= {"purple": "#b877d9", "transparent": PANEL}
SERIES = ["#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#705da0", "#37872d", "#fade2a"]
SCALES = {
    "s": ((86_400, " days"), (3_600, " h"), (60, " min"), (1, " s"), (1e-3, " ms"), (1e-6, " µs")),
    "bytes": ((2**30, " GiB"), (2**20, " MiB"), (2**10, " KiB"), (1, " B")),
    "short": ((1e9, " Bil"), (1e6, " Mil"), (1e3, " K"), (1, "")),
    "ops": ((1e6, "M ops/s"), (1e3, "K ops/s"), (1, " ops/s")),
    "percentunit": ((0.01, "%"),),
    "none": ((1, ""),),
}
Panel = Mapping[str, Any]
Shown = tuple[str, dict[str, str], np.ndarray, np.ndarray]  # name, labels, times, values


class Prometheus:
    """Answers queries of a dashboard up to a time, in seconds, with all values of its variables chosen."""

    def __init__(self, url: str, dashboard: Mapping[str, Any], end: float, span: float) -> None:
        self.host, self.end, self.span, self.variables = urlsplit(url).netloc, end, span, {"$__rate_interval": ""}
        for variable in dashboard["templating"]["list"][1:]:  # the first is the data source
            match, _, label = variable["query"]["query"].removeprefix("label_values(")[:-1].rpartition(", ")
            values = self._ask(f"label/{label}/values", "match[]", match, start=end - span)
            chosen = variable.get("allValue") or "|".join(map(re.escape, values))
            self.variables[f"${variable['name']}"] = chosen.replace("\\", "\\\\")

    def _ask(self, path: str, key: str, text: str, **others: float) -> Any:
        for variable, value in self.variables.items():
            text = text.replace(variable, value)
        connection = HTTPConnection(self.host, timeout=60)
        connection.request("GET", f"/api/v1/{path}?{urlencode({key: text, **others})}")
        answer = json.loads(connection.getresponse().read())
        connection.close()
        if answer["status"] != "success":
            raise ValueError(f"{text}: {answer['error']}")
        return answer["data"]

    def query(self, target: Mapping[str, Any], step: float) -> list[Shown]:
        """Return what a target of a panel, or an annotation, shows at the end or over the time."""
        self.variables["$__rate_interval"] = f"{max(step + SCRAPE, 4 * SCRAPE):.0f}s"
        path, at = "query" if target.get("instant") else "query_range", self.end
        found = []
        for series in self._ask(path, "query", target["expr"], time=at, start=at - self.span, end=at, step=step)[
            "result"
        ]:
            labels, samples = series["metric"], series.get("values") or [series["value"]]
            name = re.sub(r"{{(\w+)}}", lambda it, of=labels: of.get(it[1], ""), target.get("legendFormat", ""))
            found.append((name.strip(), labels, *np.array(samples, dtype=float).T))
        return found


def _formatted(value: float, field: Mapping[str, Any]) -> str:
    for options in (mapping["options"] for mapping in field.get("mappings", ())):
        if f"{value:g}" in options:
            return str(options[f"{value:g}"]["text"])
        if "result" in options and options["from"] <= value <= (options["to"] or math.inf):
            return str(options["result"]["text"])
    unit, decimals = field.get("unit", "none"), field.get("decimals")
    if unit == "dateTimeFromNow":
        return f"{_formatted(time.time() - value / 1000.0, {'unit': 's', 'decimals': 0})} ago"  # noqa: TID251 - a clock's
    scales = SCALES.get(unit) or ((1, f" {unit.removeprefix('suffix:')}"),)
    size, suffix = next((scale for scale in scales if (abs(value) or 1.0) >= scale[0]), scales[-1])
    value /= size
    if decimals is None:
        decimals = max(2 - math.floor(math.log10(abs(value))), 0) if math.isfinite(value) and value else 0
        return re.sub(r"(\.\d*?)0+$", r"\1", f"{value:.{decimals}f}").rstrip(".") + suffix
    return f"{value:.{decimals}f}{suffix}"


def _field_of(panel: Panel, name: str) -> dict[str, Any]:
    field = dict(panel["fieldConfig"]["defaults"])
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"] == {"id": "byName", "options": name}:
            field.update({each["id"]: each["value"] for each in override["properties"]})
    return field


def _color_of(value: float | str, field: Mapping[str, Any]) -> str:
    name = "transparent"
    if not isinstance(value, str):
        steps = field["thresholds"]["steps"]
        name = [each["color"] for each in steps if each["value"] is None or value >= each["value"]][-1]
    for mapping in field.get("mappings", ()):
        name = mapping["options"].get(value if isinstance(value, str) else f"{value:g}", {}).get("color", name)
    return COLORS[name]


class Picture:
    """The panels that begin above so many rows of the grid, each placed by its pixels from the upper left corner."""

    def __init__(self, prometheus: Prometheus, dashboard: Mapping[str, Any], rows: float) -> None:
        panels = [panel for panel in dashboard["panels"] if panel["gridPos"]["y"] < rows]
        self.w, self.h = 24 * COLUMN, ROW * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
        self.figure = Figure(figsize=(self.w / DPI, self.h / DPI), dpi=DPI, facecolor=PAGE)
        self._axes = self._part(0, 0, self.w, self.h)
        self._axes.set(xlim=(0, self.w), ylim=(self.h, 0))
        self._axes.axis("off")
        notes = [(note, prometheus.query(note, 60.0)) for note in dashboard["annotations"]["list"]]
        for panel in panels:
            x, y, w, h = (panel["gridPos"][key] * size for key, size in zip("xywh", (COLUMN, ROW) * 2, strict=True))
            if panel["type"] == "row":
                hidden = f"   ({len(panel['panels'])} panels)" if "panels" in panel else ""
                self._text(x + 8, y + h / 2, f"{'›' if hidden else '⌄'}  {panel['title']}{hidden}", 12, weight="bold")
                continue
            self._box(x + GAP, y + GAP, w - 2 * GAP, h - 2 * GAP, PANEL)
            self._text(x + 12, y + 18, panel["title"], 10, weight="bold")
            frames = [prometheus.query(target, max(prometheus.span / w, SCRAPE)) for target in panel["targets"]]
            found = [shown for answer in frames for shown in answer]
            inside = x + 10, y + 34, w - 20, h - 40
            if not found:
                nothing = panel["fieldConfig"]["defaults"].get("noValue", "No data")
                self._text(x + w / 2, y + h / 2, nothing, 11, MUTED, ha="center")
            elif panel["type"] == "stat":
                self._stat(panel, found, *inside)
            elif panel["type"] == "table":
                self._table(panel, frames, *inside)
            else:
                axes = self._series(panel, found, *inside)
                axes.set_xlim((prometheus.end - prometheus.span) / 60, prometheus.end / 60)
                for note, times in ((note, it[2]) for note, of in notes for it in of):
                    for at in times[np.diff(times, prepend=0.0) > 60.0]:  # where one begins that may last
                        axes.axvline(at / 60, color=COLORS[note["iconColor"]], lw=0.8, ls=":")

    def _part(self, x: float, y: float, w: float, h: float) -> Axes:
        return self.figure.add_axes((x / self.w, 1 - (y + h) / self.h, w / self.w, h / self.h))

    def _box(self, x: float, y: float, w: float, h: float, color: str) -> None:
        self._axes.add_patch(Rectangle((x, y), w, h, facecolor=color, edgecolor="none"))

    def _text(self, x: float, y: float, text: str, size: float, color: str = TEXT, **style: Any) -> None:
        self._axes.text(x, y, text, size=size, color=color, va="center", **style)

    def _stat(self, panel: Panel, found: list[Shown], x: float, y: float, w: float, h: float) -> None:
        w /= len(found)
        for k, (name, _, _, [value]) in enumerate(found):
            field = _field_of(panel, name)
            text, middle = _formatted(value, field), x + (k + 0.5) * w
            self._box(x + k * w + 2, y, w - 4, h, _color_of(value, field))
            self._text(middle, y + 0.4 * h, text, min(27, 0.9 * w / len(text)), "white", ha="center", weight="bold")
            self._text(middle, y + 0.82 * h, name, 9.5, "white", ha="center")

    def _table(self, panel: Panel, frames: list[list[Shown]], x: float, y: float, w: float, h: float) -> None:
        keys = [f"Value #{target['refId']}" if len(frames) > 1 else "Value" for target in panel["targets"]]
        answers = [[{**it[1], key: it[3][0]} for it in found] for key, found in zip(keys, frames, strict=True)]
        names = [*dict.fromkeys(name for rows in answers for row in rows for name in row)]
        shared = [name for name in names if all(name in row for rows in answers for row in rows)]
        merged: dict[Any, dict[str, Any]] = {}
        for row in (row for rows in answers for row in rows):
            merged.setdefault(tuple(row[name] for name in shared), {}).update(row)
        organize, [order] = panel["transformations"][-1]["options"], panel["options"]["sortBy"]
        names = [name for name in names if not organize["excludeByName"].get(name)]
        names.sort(key=lambda name: organize.get("indexByName", {}).get(name, math.inf))
        fields = {name: _field_of(panel, name) for name in names}
        by = next(name for name in names if fields[name].get("displayName", name) == order["displayName"])
        ordered = sorted(merged.values(), key=lambda row: row[by], reverse=order.get("desc", False))
        fixed = [field["custom.width"] for field in fields.values() if "custom.width" in field]
        for name, field in fields.items():
            width = field.get("custom.width") or (w - sum(fixed)) / (len(names) - len(fixed))
            self._text(x + 4, y + CELL / 2, field.get("displayName", name), 8.5, COLORS["blue"])
            for k, row in enumerate(ordered[: int(h / CELL) - 1], 1):
                value = row.get(name, "")
                text = value if isinstance(value, str) else _formatted(value, field)
                if "cellOptions" in field.get("custom", {}):
                    self._box(x, y + k * CELL + 1, width - 2, CELL - 2, _color_of(value, field))
                self._text(x + 4, y + (k + 0.5) * CELL, text[: int(width / LETTER)], 9, "white")
            x += width

    def _series(self, panel: Panel, found: list[Shown], x: float, y: float, w: float, h: float) -> Axes:
        defaults, legend = panel["fieldConfig"]["defaults"], panel["options"]["legend"]
        custom, last = defaults.get("custom", {}), [it[3][np.isfinite(it[3])][-1:].sum() for it in found]
        texts = [_formatted(value, defaults) for value in last]
        order, columns, room, right = [*range(len(found))], 1, int(h // LINE), "placement" in legend
        if right:
            order.sort(key=last.__getitem__, reverse=True)
            w, left, top, apart = w - 250, x + w - 240, y, 240.0
        else:
            widest = max(len(f"{it[0]}  {text}") for it, text in zip(found, texts, strict=True)) * LETTER + 24
            columns = max(int(w // widest), 1)
            room = min(math.ceil(len(found) / columns), 4) * columns
            h -= LINE * room // columns
            left, top, apart = x, y + h, w / columns
        axes = self._part(x + 62, y, w - 66, h - 28)
        for k, (name, _, times, values) in enumerate(found):
            color, minutes = SERIES[k % len(SERIES)], times / 60
            if custom.get("drawStyle") == "bars":
                axes.bar(minutes, values, width=0.15, color=color)
            else:  # with gaps where there is nothing
                gaps = np.flatnonzero(np.diff(minutes) > 1.5 * np.diff(minutes).min(initial=math.inf)) + 1
                axes.plot(
                    np.insert(minutes, gaps, np.nan), np.insert(values, gaps, np.nan), ".-", ms=2, color=color, lw=1.4
                )
            at, more = order.index(k), len(found) - room + 1
            x, y = left + at % columns * apart, top + at // columns * LINE
            if more > 1 and at == room - 1:
                self._text(x, y, f"… {more} more", 8, MUTED)
            elif at < room:
                self._box(x, y - 2, 12, 4, color)
                self._text(x + 16, y, name if right else f"{name}  {texts[k]}", 8)
                self._text(x + apart - 4, y, texts[k] if right else "", 8, ha="right")
        scale = custom.get("scaleDistribution", {"type": "linear"})
        axes.set_yscale(scale["type"], **({"linthresh": scale["linearThreshold"]} if scale["type"] == "symlog" else {}))
        low, high = axes.get_ylim()
        if scale["type"] == "log":  # whole powers, as in Grafana
            shown = np.concatenate([[custom.get("axisSoftMax", 0.0)], *(it[3] for it in found)])
            shown = np.log10(shown[np.isfinite(shown) & (shown > 0.0)])
            low, high = 10.0 ** np.floor(shown.min()), 10.0 ** np.ceil(shown.max())
        for step in defaults["thresholds"]["steps"][1:] if "thresholdsStyle" in custom else ():
            if low <= step["value"] <= high:
                axes.axhline(step["value"], color=COLORS[step["color"]], lw=1.2, ls=(0, (4, 4)))
        axes.set(ylim=(defaults.get("min", low), defaults.get("max", high)), facecolor=PANEL)
        axes.grid(color=RULE, lw=0.6)
        axes.tick_params(colors=MUTED, labelsize=8, length=0)
        axes.spines[:].set_visible(False)
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda value, _: _formatted(value, {**defaults, "mappings": ()}))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(lambda value, _: time.strftime("%H:%M", time.gmtime(60 * value)))
        return axes


def main(argv: list[str] | None = None) -> None:
    """Draw, with few colors, so that the file is small."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of Prometheus")
    parser.add_argument("out", type=Path, help="PNG to write")
    parser.add_argument("--minutes", type=float, default=60.0, help="time shown, up to now")
    parser.add_argument("--rows", type=float, default=math.inf, help="of the grid; what begins below is left out")
    given = parser.parse_args(argv)
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    prometheus = Prometheus(given.url, dashboard, time.time(), 60.0 * given.minutes)  # noqa: TID251 - as its clock
    drawn = io.BytesIO()
    Picture(prometheus, dashboard, given.rows).figure.savefig(drawn, format="png")
    Image.open(drawn).convert("RGB").quantize(128).save(given.out, optimize=True)


if __name__ == "__main__":
    main()
