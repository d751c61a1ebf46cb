"""The description of the server of predictions: true by schemathesis, complete, and of use to people."""

import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import hypothesis
import msgspec
import pytest
import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance

from streammoe.serving import openapi
from streammoe.serving.page import FILES
from tests.unit.serving import jsonl_hooks
from tests.unit.serving.served import MODEL, answering, regressor
from tests.unit.strangers import ask

CANNOT_SAY = (f"{MODEL}/infer", f"{MODEL}/versions/{{version}}/infer")
"""Paths whose schema cannot say how many values, and of which type, data have by their shape and datatype."""


@pytest.fixture
def server():
    with answering(regressor(60), rows_per_second=10**9) as server:
        yield server


def test_schemathesis_finds_nothing(server):
    examined = 0

    def examine(operation, mode):
        @hypothesis.settings(max_examples=15, suppress_health_check=list(hypothesis.HealthCheck), database=None)
        @hypothesis.given(operation.as_strategy(generation_mode=mode))
        def check(case):
            nonlocal examined
            case.call_and_validate(excluded_checks=[positive_data_acceptance] * (operation.path in CANNOT_SAY))
            examined += 1

        check()

    for each in schemathesis.openapi.from_url(f"{server.url}/openapi.json").get_all_operations():
        examine(each.ok(), schemathesis.GenerationMode.POSITIVE)
        if each.ok().method == "post":  # others take nothing that could be wrong
            examine(each.ok(), schemathesis.GenerationMode.NEGATIVE)
    assert examined > 100


@pytest.mark.exhaustive
def test_schemathesis_finds_nothing_in_all_its_phases(tmp_path, monkeypatch):
    monkeypatch.setattr("streammoe.serving.server.SILENT_SECONDS", math.inf)  # nothing learns here
    off = "checks.positive_data_acceptance.enabled = false"
    settings = tmp_path / "schemathesis.toml"
    settings.write_text("".join(f'[[operations]]\ninclude-path = "{path}"\n{off}\n' for path in CANNOT_SAY))
    with answering(regressor(60), rows_per_second=10**9, username="shop", password="word") as server:
        found = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", settings, "run"),
                *(f"{server.url}/openapi.json", "--auth", "shop:word", "-n", "100", "--no-color"),
            ],
            env=os.environ | {"SCHEMATHESIS_HOOKS": jsonl_hooks.__name__, "PYTHONPATH": str(Path(__file__).parents[3])},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert found.returncode == 0, found.stdout


def test_the_document_has_all_that_is_served_and_the_columns_of_the_model(server):
    document = json.loads(ask(server, "/openapi.json")[2])
    rules = server.listener._http.request_callback.wildcard_router.rules
    served = {re.sub(r"\(\?P<(\w+)>.*?\)", r"{\1}", rule.matcher.regex.pattern).replace("\\", "") for rule in rules}
    besides = {*FILES, "/status.json", "/metrics", ".*"}
    assert {f"{path}$" for path in [*document["paths"], *besides]} == served
    record = document["components"]["schemas"]["Record"]
    assert {name: column["description"] for name, column in record["properties"].items()} == {
        "size": "a number, or true or false",
        "it's <new>": "a number, or true or false",
        "colour": "a category",
        "when": "a time in ISO 8601, or seconds since 1970",
    }
    assert document["paths"]["/predict"]["post"]["responses"].keys() >= {"200", "400", "413", "415", "422", "429"}


def commands_in(text):
    return [line.strip() for line in text.splitlines() if line.startswith("  curl ")]


def test_each_command_of_the_docs_works_when_it_is_pasted(server):
    status, headers, text = ask(server, "/docs")
    assert (headers.get_content_type(), headers["X-Content-Type-Options"]) == ("text/plain", "nosniff")
    commands = commands_in(text.decode())
    assert (status, len(commands)) == (200, 15)
    for command in commands:
        found = subprocess.run(["sh", "-c", f"{command} --fail"], capture_output=True, text=True, check=False)
        assert found.returncode == 0, (command, found.stderr, found.stdout)
        if "/docs" not in command:
            assert msgspec.json.decode(found.stdout)


def test_no_name_of_a_column_or_host_is_a_command_or_controls_a_terminal(server):
    document = openapi.document(server.routes, server.settings, server.latest)
    document["components"]["schemas"]["Record"]["properties"]["\x1b[2J"] = {"description": "a number"}
    text = openapi.in_words(document, "http://x';touch /<img>", "o'shop")
    words = shlex.split(commands_in(text)[0])
    assert (words[0], words[-1]) == ("curl", "http://x';touch /<img>/predict")
    assert "it's <new>: " in text
    assert "\x1b" not in text
