"""The picture of the dashboard has what the JSON says."""

import json

import pytest

pytest.importorskip("matplotlib")

from scripts import draw_dashboard
from scripts.draw_dashboard import DASHBOARD, Picture, Prometheus

BOARD = json.loads(DASHBOARD.read_text())


class Answers(Prometheus):
    """Gives each query two daemons, the second of which has ten times the value."""

    def __init__(self):
        self.asked = []
        super().__init__("http://127.0.0.1:9", BOARD, 1_000.0, 600.0)

    def _ask(self, path, key, text, **others):
        self.asked.append(text)
        if path.startswith("label/"):
            return ["a:1", "b:2"]
        series = []
        for value, instance in (("0.5", "a:1"), ("5", "b:2")):
            labels = {"instance": instance, "severity": "page", "alertname": "StreammoeDown", "topic": "t"}
            samples = [[400, value], [1_000, value]]
            series.append({"metric": labels, **({"value": samples[1]} if path == "query" else {"values": samples})})
        return {"result": series}


def test_titles_values_thresholds_and_closed_rows_are_drawn():
    prometheus = Answers()
    picture = Picture(prometheus, BOARD, 1_000)
    texts = [text.get_text() for axes in picture.figure.axes for text in axes.texts]
    for panel in BOARD["panels"]:
        assert any(panel["title"] in text for text in texts), panel["title"]
    assert "›  Global model   (9 panels)" in texts
    assert {"500%", "5 s", "b:2", "StreammoeDown", "Error / base"} <= {*texts}
    fills = [draw_dashboard._color_of(value, {"thresholds": {"steps": STEPS}}) for value in (0.5, 5.0)]
    assert fills == [draw_dashboard.COLORS["green"], draw_dashboard.COLORS["red"]]


STEPS = [{"color": "green", "value": None}, {"color": "red", "value": 5}]


@pytest.mark.parametrize(
    ("value", "field", "text"),
    [
        (0.0, {"unit": "s"}, "0 s"),
        (90.0, {"unit": "s"}, "1.5 min"),
        (0.1234, {"unit": "percentunit"}, "12.3%"),
        (
            12.0,
            {
                "unit": "percentunit",
                "mappings": [{"type": "range", "options": {"from": 10, "to": None, "result": {"text": "much"}}}],
            },
            "much",
        ),
        (1.0, {"mappings": [{"type": "value", "options": {"1": {"text": "yes"}}}]}, "yes"),
        (1_230.0, {"unit": "short"}, "1.23 K"),
        (2**21, {"unit": "bytes"}, "2 MiB"),
        (2.5, {"unit": "suffix:nats", "decimals": 2}, "2.50 nats"),
        (float("nan"), {"unit": "s"}, "nan"),
    ],
)
def test_values_are_written_in_their_units(value, field, text):
    assert draw_dashboard._formatted(value, field).startswith(text)
