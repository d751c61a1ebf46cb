"""Dashboard, alerts and scrape config against the catalogue of metrics. tests/integration runs the queries.

Grafana itself was never run: what is held here is the shape of its files, not how they look.
"""

import json
import re
from pathlib import Path

import pytest
import yaml

from streammoe.daemon.metrics import CATALOGUE, OUTCOMES

CONFIG = Path(__file__).parents[3] / "config"
DASHBOARD = json.loads((CONFIG / "grafana" / "streammoe.json").read_text())
ALERTS = yaml.safe_load((CONFIG / "prometheus" / "alerts.yml").read_text())
SCRAPE = yaml.safe_load((CONFIG / "prometheus" / "prometheus.yml").read_text())

PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
EXPRESSIONS = [
    *(pytest.param(t["expr"], id=f"{p['title']}/{t['refId']}") for p in PANELS for t in p["targets"]),
    *(pytest.param(rule["expr"], id=rule["alert"]) for rule in RULES),
]


def named(text):
    """The metrics that a text names; a histogram's series stand for their metric."""
    found = set(re.findall(r"\bstreammoe_\w+", text))
    series = {f"{name}_{part}": name for name in CATALOGUE for part in ("bucket", "count", "sum")}
    return {series.get(name, name) for name in found}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_is_asked_for_is_in_the_catalogue(expression):
    unknown = named(expression) - CATALOGUE.keys()
    assert not unknown
    for name, selector in re.findall(r"\b(streammoe_\w+)\{([^}]*)\}", expression):
        [metric] = named(name)
        labels = set(CATALOGUE[metric].labels)
        assert set(re.findall(r"(\w+)[!=]", selector)) <= labels | {"job", "instance"}
    for outcomes in re.findall(r'outcome=~?"([^"]*)"', expression):
        assert set(outcomes.split("|")) <= set(OUTCOMES)


def test_the_dashboard_shows_every_metric():
    shown = set().union(*(named(target["expr"]) for panel in PANELS for target in panel["targets"]))
    assert CATALOGUE.keys() - shown == set()


def test_panels_do_not_overlap_and_say_what_they_mean():
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not taken & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert all(panel["description"] and panel["datasource"]["uid"] == "${datasource}" for panel in PANELS)


def test_every_variable_of_a_query_is_there():
    known = {variable["name"] for variable in DASHBOARD["templating"]["list"]} | {"__rate_interval"}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps([DASHBOARD["panels"], DASHBOARD["templating"]["list"]]))) - {
        "__all"
    }
    assert used <= known


def test_every_alert_says_what_is_wrong_and_how_urgent_it_is():
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["labels"]["severity"] in {"page", "ticket"}


def test_the_job_that_alerts_ask_for_is_the_one_that_is_scraped():
    jobs = {job["job_name"] for job in SCRAPE["scrape_configs"]}
    assert set(re.findall(r'job="(\w+)"', json.dumps([rule["expr"] for rule in RULES]).replace("\\", ""))) == jobs
    assert SCRAPE["rule_files"] == ["alerts.yml"]
