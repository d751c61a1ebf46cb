"""Dashboard, alerts and scrape config against the catalogue of metrics. tests/integration parses the queries.

Grafana itself was never run: what is held here is what its files ask for. `python -m scripts.draw_dashboard` draws it.
"""

import json
import re
from pathlib import Path

import click
import yaml

from streammoe import commands
from streammoe.daemon import metrics
from streammoe.scaleout import shard_metrics as of_reduce
from streammoe.serving.server import OF_SERVING

CATALOGUE = {**metrics.CATALOGUE, **OF_SERVING, **of_reduce.OF_FOLLOWERS, **of_reduce.CATALOGUE}
OUTCOMES = {*metrics.OUTCOMES, *metrics.RELOAD_OUTCOMES, *of_reduce.OUTCOMES}

CONFIG = Path(__file__).parents[3] / "config"
DOCUMENT = CONFIG.parent / "docs" / "metrics.md"
RUNBOOK = CONFIG.parent / "docs" / "runbook.md"
DASHBOARD = json.loads((CONFIG / "grafana" / "streammoe.json").read_text())
ALERTS = yaml.safe_load((CONFIG / "prometheus" / "alerts.yml").read_text())
SCRAPE = yaml.safe_load((CONFIG / "prometheus" / "prometheus.yml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS = [each for panel in DASHBOARD["panels"] for each in (panel, *panel.get("panels", ()))]
"""Rows, and panels in them whether they are collapsed or not."""
DRAWN = [panel for panel in PANELS if panel["type"] != "row"]
MARKED = DASHBOARD["annotations"]["list"]
SHOWN = [target["expr"] for panel in DRAWN for target in panel["targets"]]


def named(text):
    """Return the metrics that a text names; a histogram's series count as their metric."""
    series = {f"{name}_{part}": name for name in CATALOGUE for part in ("bucket", "count", "sum")}
    return {series.get(name, name) for name in re.findall(r"\bstreammoe_\w+", text)}


def test_dashboard_and_alerts_ask_only_for_what_is_in_the_catalogue_and_the_dashboard_shows_all_of_it():
    for expression in [*SHOWN, *(mark["expr"] for mark in MARKED), *(rule["expr"] for rule in RULES)]:
        assert not named(expression) - CATALOGUE.keys(), expression
        for name, selector in re.findall(r"\b(streammoe_\w+)\{([^}]*)\}", expression):
            [metric] = named(name)
            assert set(re.findall(r"(\w+)[!=]", selector)) <= {*CATALOGUE[metric].labels, "job", "instance"}, expression
        for outcomes in re.findall(r'outcome=~?"([^"]*)"', expression):
            assert set(outcomes.split("|")) <= set(OUTCOMES), expression
    assert CATALOGUE.keys() == set().union(*map(named, SHOWN))
    of_process = set(re.findall(r"\bprocess_\w+", " ".join(SHOWN)))
    assert of_process
    assert of_process <= set(re.findall(r"`(process_\w+)`", DOCUMENT.read_text()))


def test_the_document_says_how_to_read_each_metric_that_an_alert_asks_for():
    assert set().union(*(named(rule["expr"]) for rule in RULES)) <= named(DOCUMENT.read_text())


def test_alerts_say_how_urgent_they_are_and_ask_for_no_job_of_a_certain_name():
    assert {rule["labels"]["severity"] for rule in RULES} == {"page", "ticket"}
    assert all(rule["annotations"][name] for rule in RULES for name in ("summary", "description"))
    assert "job=" not in " ".join(rule["expr"] for rule in RULES)
    assert SCRAPE["rule_files"] == ["alerts.yml"]


def test_the_runbook_has_a_section_for_each_alert_with_all_that_somebody_needs_at_night():
    sections = dict(re.findall(r"^## (Streammoe\w+)\n(.*?)(?=^## |\Z)", RUNBOOK.read_text(), re.MULTILINE | re.DOTALL))
    assert list(sections) == [rule["alert"] for rule in RULES]
    for rule in RULES:
        alert, text = rule["alert"], sections[rule["alert"]]
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{alert.lower()}"
        assert all(f"**{word}**" in text for word in ("Seen", "Means", "Do not", "Ends")), alert
        [commands] = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        assert len(commands.splitlines()) == 3, alert
        assert named(text) <= CATALOGUE.keys(), alert
    pages, tickets = RUNBOOK.read_text().partition("**page**")[2].partition("\n## ")[0].split("**ticket**")
    for severity, text in (("page", pages), ("ticket", tickets)):
        listed = re.findall(r"\[(\w+)\]\(#streammoe\w+\)", text)
        assert [f"Streammoe{name}" for name in listed] == [
            rule["alert"] for rule in RULES if rule["labels"]["severity"] == severity
        ]


def test_the_commands_of_the_runbook_that_are_ours_exist_with_their_options():
    for words in re.findall(r"^streammoe ([\w-]+)([^#\n]*)", RUNBOOK.read_text(), re.MULTILINE):
        command = commands.main.get_command(click.Context(commands.main), words[0])
        options = {option for each in command.params for option in each.opts}
        assert set(re.findall(r"--[\w-]+", words[1])) <= options, words


def test_the_top_row_says_whether_it_is_well_is_behind_or_waits_and_names_the_daemon():
    top = [panel for panel in DRAWN if panel["gridPos"]["y"] == 0]
    assert sum(panel["gridPos"]["w"] for panel in top) == 24
    assert {panel["type"] for panel in top} == {"stat"}
    asked = [" ".join(target["expr"] for target in panel["targets"]) for panel in top]
    for metric, expression in zip(
        (
            "streammoe_ready",
            "streammoe_behind_seconds",
            "streammoe_sink_waiting_seconds",
            "streammoe_unsaved_events",
            "streammoe_baseline_rmse",
            "streammoe_rejected_total",
            "streammoe_starts_total",
            "ALERTS",
        ),
        asked,
        strict=True,
    ):
        assert re.search(rf"\b{metric}\b", expression), expression
        # The worst one by its name, or how many there are.
        assert all(re.match(r"topk\(1, .*instance|count\(", part) for part in expression.split(" or vector(0) "))
    for panel in top:
        colors = [step["color"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]
        assert colors[0] == "green"
        assert colors[-1] == "red"


def test_the_table_of_daemons_has_no_rows_of_processes_that_answer_requests():
    [table] = [panel for panel in DRAWN if panel["title"] == "Each daemon"]
    of_daemons = CATALOGUE.keys() - {"streammoe_build_info"}
    for target in table["targets"]:
        assert named(target["expr"]) & of_daemons, target["expr"]


def test_legends_name_the_daemon_and_what_else_tells_series_apart():
    for panel in DRAWN:
        for target in panel["targets"]:
            legend = target.get("legendFormat", "")
            if panel["type"] == "table":
                assert target["format"] == "table"
                assert "instance" in target["expr"]
            elif not target["expr"].startswith("count("):
                assert "{{instance}}" in legend, (panel["title"], legend)
                expression = target["expr"].partition(" and ")[0]
                if by := re.search(r"\bby \(([^)]*)\)", expression):
                    kept = set(by[1].split(", ")) - {"le"}
                else:
                    labels = [CATALOGUE[name].labels for name in named(expression) & CATALOGUE.keys()]
                    kept = set().union(*labels) - set(re.findall(r"(\w+)=\"", expression))
                assert kept <= set(re.findall(r"{{(\w+)}}", legend)), (panel["title"], legend)


def test_panels_have_units_and_say_what_to_read():
    for panel in DRAWN:
        fields = [panel["fieldConfig"]["defaults"], *panel["fieldConfig"]["overrides"]]
        assert panel["type"] == "table" or fields[0]["unit"], panel["title"]
        for field in fields[1:]:
            assert field["matcher"]["id"] == "byName"
        assert re.search(r"docs/[\w-]+\.md", panel["description"]), panel["title"]
    units = {panel["title"]: panel["fieldConfig"]["defaults"].get("unit") for panel in DRAWN}
    for panel in DRAWN:
        expressions = [target["expr"] for target in panel["targets"]]
        if panel["type"] == "timeseries" and any(re.match(r"\w*\(?process_resident", each) for each in expressions):
            assert units[panel["title"]] == "bytes"
        if panel["type"] == "timeseries" and any("log_loss" in each for each in expressions):
            assert units[panel["title"]] == "suffix:nats"


def test_rows_that_few_need_are_collapsed_and_nothing_overlaps():
    rows = [panel for panel in PANELS if panel["type"] == "row"]
    rare = ["How is learning going?", "Requests for predictions", "Global model"]
    assert [row["title"] for row in rows if row.get("collapsed")] == rare
    assert all(row.get("collapsed") is ("panels" in row or None) for row in rows)
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panels in (DASHBOARD["panels"], *(row["panels"] for row in rows if "panels" in row)):
        taken = set()
        for at in (panel["gridPos"] for panel in panels):
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert at["x"] + at["w"] <= 24
            assert not taken & cells
            taken |= cells


def test_the_variables_are_there_and_all_that_is_asked_goes_by_them():
    variables = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    assert variables == ["datasource", "job", "instance", "output"]
    assert {mark["name"] for mark in MARKED} == {"Alerts", "Drifts", "Restarts", "Reloads"}
    for expression in [*SHOWN, *(mark["expr"] for mark in MARKED)]:
        for name, selector in re.findall(r"\b(streammoe_\w+|process_\w+|ALERTS|up)\b({[^}]*})?", expression):
            assert selector.startswith('{job=~"$job", instance=~"$instance"'), (name, expression)
    assert not [
        text for text in SHOWN if re.search(r"(rate|increase)\((?!streammoe_\w+_(total|bucket)|process_cpu)", text)
    ]


def test_what_explodes_does_not_hide_the_others():
    ratios = [panel for panel in DRAWN if panel["type"] == "timeseries" and "_rmse" in panel["targets"][0]["expr"]]
    assert len(ratios) == 4
    for panel in ratios:
        assert panel["fieldConfig"]["defaults"]["custom"]["scaleDistribution"]["type"] == "log"
    assert sum("clamp_max" in panel["targets"][0]["expr"] for panel in ratios) == 2
