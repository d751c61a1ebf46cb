"""A clean bill only where each package was audited; without an answer from the index that is said and nothing fails."""

import io
import json
import subprocess
import urllib.error
from pathlib import Path

import pytest

from scripts import audit_dependencies
from scripts.audit_dependencies import main

FOUND = {"vulns": [{"id": "CVE-1", "fix_versions": ["99.0"]}]}
KNOWN = b'{"vulnerabilities": [{"id": "PYSEC-2019-217"}]}'


@pytest.fixture
def audit(monkeypatch):
    """Run the script with an index that answers this, or raises it, and what pip-audit finds in each package."""
    monkeypatch.setattr(audit_dependencies, "installed", lambda: {"numpy": "2.0", "river": "0.22"})

    def audit(answer, **found):
        def urlopen(*_, **__):
            if isinstance(answer, Exception):
                raise answer
            return io.BytesIO(answer)

        def run(command, **_):
            asked = Path(command[command.index("--requirement") + 1]).read_text().split()
            results = {name: found.get(name, {"vulns": []}) for name in (line.split("==")[0] for line in asked)}
            answers = [{"name": name, **result} for name, result in results.items() if result is not None]
            return subprocess.CompletedProcess(command, 1, json.dumps({"dependencies": answers}), "")

        monkeypatch.setattr(audit_dependencies.urllib.request, "urlopen", urlopen)
        monkeypatch.setattr(audit_dependencies.subprocess, "run", run)
        return main()

    return audit


def test_without_an_index_to_query_it_says_so_and_continues(audit, capsys):
    for answer in (urllib.error.URLError("no route"), b"<html>", b'{"vulnerabilities": []}'):
        assert audit(answer, numpy=FOUND) == 0  # would fail if it were asked
        assert "NOT AUDITED" in capsys.readouterr().out


def test_a_clean_bill_needs_an_answer_without_findings_for_each_package(audit, monkeypatch, capsys):
    assert audit(KNOWN) == 0
    assert "none in 2 packages" in capsys.readouterr().out
    for numpy in (FOUND, {"skip_reason": "not on PyPI"}, None):
        assert audit(KNOWN, numpy=numpy) == 1
    monkeypatch.setattr(audit_dependencies, "ACCEPTED", {"CVE-1": "of a part that is not used"})
    assert audit(KNOWN, numpy=FOUND) == 0
