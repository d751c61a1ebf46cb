"""Dashboard, alerts and scrape config against the catalogue of metrics. tests/integration parses the queries.

Grafana itself was never run: what is held here is what its files ask for, not how they look.
"""

import json
import re
from pathlib import Path

import click
import yaml

from streammoe import commands
from streammoe.daemon import metrics
from streammoe.scaleout import shard_metrics as of_reduce

CATALOGUE = {**metrics.CATALOGUE, **of_reduce.OF_FOLLOWERS, **of_reduce.CATALOGUE}
OUTCOMES = {*metrics.OUTCOMES, *metrics.RELOAD_OUTCOMES, *of_reduce.OUTCOMES}

CONFIG = Path(__file__).parents[3] / "config"
DOCUMENT = CONFIG.parent / "docs" / "metrics.md"
RUNBOOK = CONFIG.parent / "docs" / "runbook.md"
DASHBOARD = json.loads((CONFIG / "grafana" / "streammoe.json").read_text())
ALERTS = yaml.safe_load((CONFIG / "prometheus" / "alerts.yml").read_text())
SCRAPE = yaml.safe_load((CONFIG / "prometheus" / "prometheus.yml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
SHOWN = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def named(text):
    """Return the metrics that a text names; a histogram's series count as their metric."""
    series = {f"{name}_{part}": name for name in CATALOGUE for part in ("bucket", "count", "sum")}
    return {series.get(name, name) for name in re.findall(r"\bstreammoe_\w+", text)}


def test_dashboard_and_alerts_ask_only_for_what_is_in_the_catalogue_and_the_dashboard_shows_all_of_it():
    for expression in [*SHOWN, *(rule["expr"] for rule in RULES)]:
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
