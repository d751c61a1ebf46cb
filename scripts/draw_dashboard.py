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
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from PIL import Image

DASHBOARD = Path(__file__).parents[1] / "config" / "grafana" / "streammoe.json"
COLUMN, ROW, GAP, LINE, DPI = 62, 36, 4, 17, 100
"""Size of a cell of the grid, the space around a panel, and a line of a legend, in pixels."""
SCRAPE = 5.0
"""Seconds between scrapes, the data source's `timeInterval`."""
PAGE, PANEL, TEXT, MUTED, RULE = "#111217", "#181b1f", "#d8d9da", "#9a9ba0", "#33353b"
COLORS = dict(green="#56a64b", yellow="#e0b400", orange="#ff9830", red="#e02f44", blue="#5794f2", purple="#b877d9")
SERIES = "#73bf69 #f2cc0c #8ab8ff #ff780a #f2495c #5794f2 #b877d9 #705da0 #37872d #fade2a #447ebc #c15c17".split()
"""Grafana's classic palette, in its order."""
SCALES = {
    "s": ((86_400, " days"), (3_600, " h"), (60, " min"), (1, " s"), (1e-3, " ms"), (1e-6, " µs")),
    "bytes": ((2**30, " GiB"), (2**20, " MiB"), (2**10, " KiB"), (1, " B")),
    "short": ((1e9, " Bil"), (1e6, " Mil"), (1e3, " K"), (1, "")),
    "ops": ((1e6, "M ops/s"), (1e3, "K ops/s"), (1, " ops/s")),
    "percentunit": ((0.01, "%"),),
    "none": ((1, ""),),
}


class Shown(NamedTuple):
    """A series, or a single value, with its name in the legend."""

    name: str
    labels: Mapping[str, str]
    times: np.ndarray
    values: np.ndarray


class Prometheus:
    """Answers queries of a dashboard over a time, all values of its variables chosen.

    Args:
        url: of Prometheus.
        dashboard: with the variables.
        end: of the time, in seconds since 1970.
        span: of the time, in seconds.
    """

    def __init__(self, url: str, dashboard: Mapping[str, Any], end: float, span: float) -> None:
        self.host, self.end, self.span, self.variables = urlsplit(url).netloc, end, span, {"$__rate_interval": ""}
        for variable in dashboard["templating"]["list"][1:]:  # the first is the data source
            match, _, label = variable["query"]["query"].removeprefix("label_values(")[:-1].rpartition(", ")
            values = self._ask(f"label/{label}/values", {"match[]": self._filled(match), "start": end - span})
            chosen = variable.get("allValue") or "|".join(map(re.escape, values))
            self.variables[f"${variable['name']}"] = chosen.replace("\\", "\\\\")

    def _ask(self, path: str, parameters: Mapping[str, Any]) -> Any:
        connection = HTTPConnection(self.host, timeout=60)
        connection.request("GET", f"/api/v1/{path}?{urlencode(parameters)}")
        answer = json.loads(connection.getresponse().read())
        connection.close()
        if answer["status"] != "success":
            raise ValueError(f"{parameters}: {answer['error']}")
        return answer["data"]

    def _filled(self, text: str) -> str:
        for variable, value in self.variables.items():
            text = text.replace(variable, value)
        return text

    def query(self, target: Mapping[str, Any], step: float) -> list[Shown]:
        """Return what a target of a panel, or an annotation, shows at the end or over the time."""
        self.variables["$__rate_interval"] = f"{max(step + SCRAPE, 4 * SCRAPE):.0f}s"
        asked = {"query": self._filled(target["expr"]), "time": self.end}
        over = {**asked, "start": self.end - self.span, "end": self.end, "step": step}
        found = []
        for series in self._ask(*(("query", asked) if target.get("instant") else ("query_range", over)))["result"]:
            labels = series["metric"]
            name = re.sub(r"{{(\w+)}}", lambda it, of=labels: of.get(it[1], ""), target.get("legendFormat", "")).strip()
            times, values = np.array(series.get("values") or [series["value"]], dtype=float).T
            found.append(Shown(name, labels, times, values))
        return found


def formatted(value: float, field: Mapping[str, Any]) -> str:
    """Return a value in its unit, or what it is mapped to."""
    for mapping in field.get("mappings", ()):
        options = mapping["options"]
        if mapping["type"] == "value" and f"{value:g}" in options:
            return str(options[f"{value:g}"]["text"])
        if mapping["type"] == "range" and options["from"] <= value <= (options["to"] or math.inf):
            return str(options["result"]["text"])
    unit, decimals = field.get("unit", "none"), field.get("decimals")
    if unit == "dateTimeFromNow":
        return f"{formatted(time.time() - value / 1000.0, {'unit': 's', 'decimals': 0})} ago"  # noqa: TID251 - a clock's
    scales = SCALES.get(unit) or ((1, f" {unit.removeprefix('suffix:')}"),)
    size, suffix = next((scale for scale in scales if (abs(value) or 1.0) >= scale[0]), scales[-1])
    value /= size
    if decimals is not None or not math.isfinite(value) or value == 0.0:
        return f"{value:.{decimals or 0}f}{suffix}"
    text = f"{value:.{min(max(2 - math.floor(math.log10(abs(value))), 0), 6)}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + suffix


def field_of(panel: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the configuration of a field: the defaults, and the overrides that match its name."""
    field = dict(panel["fieldConfig"]["defaults"])
    for override in panel["fieldConfig"]["overrides"]:
        wanted = override["matcher"]["options"]
        if name == wanted or (override["matcher"]["id"] == "byRegexp" and re.search(wanted.strip("/"), name)):
            field.update({each["id"]: each["value"] for each in override["properties"]})
    return field


def color_of(value: float | str, field: Mapping[str, Any]) -> str:
    """Return the color of what a value is mapped to, or of the last threshold that it reaches."""
    name = "transparent"
    if not isinstance(value, str):
        steps = field["thresholds"]["steps"]
        name = [each["color"] for each in steps if each["value"] is None or value >= each["value"]][-1]
    for mapping in field.get("mappings", ()):
        name = mapping["options"].get(value if isinstance(value, str) else f"{value:g}", {}).get("color", name)
    return COLORS.get(name, PANEL)


def box(axes: Axes, x: float, y: float, width: float, height: float, color: str) -> None:
    """Fill a part of a panel."""
    axes.add_patch(Rectangle((x, y), width, height, facecolor=color, edgecolor="none"))


def draw_stat(axes: Axes, panel: Mapping[str, Any], found: list[Shown]) -> None:
    """Draw values side by side on the colors of their thresholds, with their names."""
    for k, shown in enumerate(found):
        field, width = field_of(panel, shown.name), 1.0 / len(found)
        text, middle = formatted(shown.values[-1], field), (k + 0.5) * width
        box(axes, k * width + 0.01, 0.04, width - 0.02, 0.94, color_of(shown.values[-1], field))
        size = min(27.0, 160.0 * width / len(text))
        axes.text(middle, 0.6, text, ha="center", va="center", color="white", size=size, weight="bold")
        axes.text(middle, 0.18, shown.name, ha="center", va="center", color="white", size=9.5)


def draw_table(axes: Axes, panel: Mapping[str, Any], frames: list[list[Shown]], pixels: float, lines: int) -> None:
    """Draw the rows of all queries, merged by the labels that they share."""
    refs = [f" #{target['refId']}" if len(frames) > 1 else "" for target in panel["targets"]]
    answers = [[{**it.labels, f"Value{ref}": it.values[-1]} for it in of] for ref, of in zip(refs, frames, strict=True)]
    names = [*dict.fromkeys(name for rows in answers for row in rows for name in row)]
    shared = [name for name in names if all(name in row for rows in answers for row in rows)]
    merged: dict[Any, dict[str, Any]] = {}
    for row in (row for rows in answers for row in rows):
        merged.setdefault(tuple(row[name] for name in shared), {}).update(row)
    organize = panel["transformations"][-1]["options"]
    names = [name for name in names if not organize["excludeByName"].get(name)]
    names.sort(key=lambda name: organize.get("indexByName", {}).get(name, math.inf))
    fields = {name: field_of(panel, name) for name in names}
    titles = {fields[name].get("displayName", name): name for name in names}
    [order] = panel["options"]["sortBy"]
    rows = sorted(merged.values(), key=lambda row: row[titles[order["displayName"]]], reverse=order.get("desc", False))
    fixed = {name: COLUMN / 66 * field["custom.width"] for name, field in fields.items() if "custom.width" in field}
    left, line = 0.0, 1.0 / lines
    for title, name in titles.items():
        width = fixed.get(name, (pixels - sum(fixed.values())) / (len(names) - len(fixed) or 1)) / pixels
        axes.text(left + 4 / pixels, 1 - line / 2, title, color=COLORS["blue"], size=8.5, va="center")
        for k, row in enumerate(rows[: lines - 1]):
            value, y = row.get(name, ""), 1 - line * (k + 1.5)
            text, room = value if isinstance(value, str) else formatted(value, fields[name]), int(width * pixels / 6.8)
            if "cellOptions" in fields[name].get("custom", {}):
                box(axes, left, y - 0.46 * line, width - 2 / pixels, 0.92 * line, color_of(value, fields[name]))
            text = text if len(text) <= room else f"{text[: room - 1]}…"
            axes.text(left + 4 / pixels, y, text, color="white", size=9, va="center")
        left += width


def draw_series(axes: Axes, panel: Mapping[str, Any], found: list[Shown], marks: list[tuple[float, str]]) -> None:
    """Draw lines or bars over time, thresholds and annotations."""
    defaults = panel["fieldConfig"]["defaults"]
    custom, axes_text = defaults.get("custom", {}), {**defaults, "mappings": ()}
    for k, shown in enumerate(found):
        color, minutes, values = SERIES[k % len(SERIES)], shown.times / 60, shown.values
        if custom.get("drawStyle") == "bars":
            axes.bar(minutes, values, width=0.15, color=color)
        else:  # with gaps where there is nothing
            gaps = np.flatnonzero(np.diff(minutes) > 1.5 * np.diff(minutes).min(initial=math.inf)) + 1
            style = "--" if "custom.lineStyle" in field_of(panel, shown.name) else "-"
            axes.plot(np.insert(minutes, gaps, np.nan), np.insert(values, gaps, np.nan), style, color=color, lw=1.4)
    scale = custom.get("scaleDistribution", {"type": "linear"})
    names = {"log": "base", "linearThreshold": "linthresh"}
    axes.set_yscale(scale["type"], **{names[key]: value for key, value in scale.items() if key != "type"})
    low, high = axes.get_ylim()
    for step in defaults["thresholds"]["steps"][1:] if "thresholdsStyle" in custom else ():
        if low < step["value"] < high:
            axes.axhline(step["value"], color=COLORS[step["color"]], lw=1.2, ls=(0, (4, 4)))
    for minute, color in marks:
        axes.axvline(minute, color=color, lw=0.8, ls=":")
    axes.set_ylim(defaults.get("min"), defaults.get("max"))
    axes.set_facecolor(PANEL)
    axes.grid(color=RULE, lw=0.6)
    axes.tick_params(colors=MUTED, labelsize=8, length=0)
    axes.spines[:].set_visible(False)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formatted(value, axes_text)))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: time.strftime("%H:%M", time.gmtime(60 * value))))


def draw_legend(axes: Axes, panel: Mapping[str, Any], found: list[Shown], pixels: float, lines: int) -> None:
    """Draw names and last values, as a table or one after the other, as far as there is room."""
    options = panel["options"]["legend"]
    last = [shown.values[np.isfinite(shown.values)][-1:].sum() for shown in found]
    order = sorted(range(len(found)), key=lambda k: last[k] if options.get("sortDesc") else -k, reverse=True)
    x, y, table = 0.0, 1.0 - 0.5 / lines, options.get("placement") == "right"
    for done, k in enumerate(order):
        text = formatted(last[k], panel["fieldConfig"]["defaults"])
        label = found[k].name if table else f"{found[k].name}  {text}"
        width = 1.0 if table else (6.4 * len(label) + 28) / pixels
        if x > 0.0 and x + width > 1.0:
            x, y = 0.0, y - 1.0 / lines
        if done < len(order) - 1 and y < 1.0 / lines and (table or x + width > 1.0 - 80 / pixels):
            axes.text(x, y, f"… {len(order) - done} more", color=MUTED, size=8, va="center")
            return
        box(axes, x, y - 0.1 / lines, 12 / pixels, 0.2 / lines, SERIES[k % len(SERIES)])
        axes.text(x + 16 / pixels, y, label, color=TEXT, size=8, va="center")
        if table:
            axes.text(1.0, y, text, color=TEXT, size=8, va="center", ha="right")
        x += width


def draw(prometheus: Prometheus, dashboard: Mapping[str, Any], rows: float) -> Figure:
    """Draw the panels that begin above so many rows of the grid."""
    panels = [panel for panel in dashboard["panels"] if panel["gridPos"]["y"] < rows]
    wide, high = 24 * COLUMN, ROW * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = Figure(figsize=(wide / DPI, high / DPI), dpi=DPI, facecolor=PAGE)
    marks = []
    for note in dashboard["annotations"]["list"]:
        for shown in prometheus.query(note, 60.0):  # one that lasts is a region, whose beginning is drawn
            starts = shown.times[np.diff(shown.times, prepend=0.0) > 60.0]
            marks += [(at / 60, COLORS[note["iconColor"]]) for at in starts]

    def part(x: float, y: float, w: float, h: float, *, plain: bool = True) -> Axes:
        axes = figure.add_axes((x / wide, 1 - (y + h) / high, w / wide, h / high))
        if plain:
            axes.set(xlim=(0, 1), ylim=(0, 1))
            axes.axis("off")
        return axes

    for panel in panels:
        x, y, w, h = (panel["gridPos"][key] * size for key, size in zip("xywh", (COLUMN, ROW) * 2, strict=True))
        frame = part(x + GAP, y + GAP, w - 2 * GAP, h - 2 * GAP)
        if panel["type"] == "row":
            title = (
                f"›  {panel['title']}   ({len(panel['panels'])} panels)"
                if "panels" in panel
                else f"⌄  {panel['title']}"
            )
            frame.text(0.003, 0.5, title, color=TEXT, size=12, va="center", weight="bold")
            continue
        box(frame, 0, 0, 1, 1, PANEL)
        frame.text(8 / w, 1 - 13 / h, panel["title"], color=TEXT, size=10, va="center", weight="bold")
        frames = [prometheus.query(target, max(prometheus.span / w, SCRAPE)) for target in panel["targets"]]
        found = [shown for answer in frames for shown in answer]
        right = "placement" in panel["options"].get("legend", {})
        below = LINE * min(sum(len(shown.name) + 14 for shown in found) * 7 // w + 1, 4) * (not right)
        if not found:
            nothing = panel["fieldConfig"]["defaults"].get("noValue", "No data")
            frame.text(0.5, 0.5, nothing, ha="center", va="center", color=MUTED, size=11)
        elif panel["type"] == "stat":
            draw_stat(part(x + GAP, y + 28, w - 2 * GAP, h - 28 - GAP), panel, found)
        elif panel["type"] == "table":
            lines = (h - 34) // 34
            draw_table(part(x + 10, y + 30, w - 20, 34 * lines), panel, frames, w - 20, lines)
        else:
            plot = part(x + 68, y + 32, w - (330 if right else 82), h - 62 - below, plain=False)
            draw_series(plot, panel, found, marks)
            across, down = (240, h - 40) if right else (w - 20, below)
            legend = part(x + w - across - 10, y + h - down - 6, across, down)
            draw_legend(legend, panel, found, across, down // LINE)
    return figure


def main(argv: list[str] | None = None) -> None:
    """Draw, with few colors, so that the file is small."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of Prometheus")
    parser.add_argument("out", type=Path, help="PNG to write")
    parser.add_argument("--minutes", type=float, default=60.0, help="time shown, up to now")
    parser.add_argument(
        "--rows", type=float, default=math.inf, help="of the grid; panels that begin below are left out"
    )
    given = parser.parse_args(argv)
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    prometheus = Prometheus(given.url, dashboard, time.time(), 60.0 * given.minutes)  # noqa: TID251 - as its clock
    drawn = io.BytesIO()
    draw(prometheus, dashboard, given.rows).savefig(drawn, format="png")
    Image.open(drawn).convert("RGB").quantize(128).save(given.out, optimize=True)


if __name__ == "__main__":
    main()
