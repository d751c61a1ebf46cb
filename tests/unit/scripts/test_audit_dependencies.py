"""A clean bill only where each package was audited; where nobody can be asked, that is said and nothing fails."""

import io
import json
import subprocess
import urllib.error
from pathlib import Path

import pytest

from scripts import audit_dependencies
from scripts.audit_dependencies import main, problems

FOUND = {"vulns": [{"id": "CVE-1", "fix_versions": ["99.0"]}]}


@pytest.fixture
def audit(monkeypatch):
    """Run the script with an index that answers this, or raises it, and what pip-audit finds in each package."""

    def audit(answer, **found):
        def urlopen(address, timeout):
            if isinstance(answer, Exception):
                raise answer
            return io.BytesIO(answer)

        def run(command, **_):
            asked = Path(command[command.index("--requirement") + 1]).read_text().split()
            names = [line.split("==")[0] for line in asked]
            answers = [{"name": name, **found.get(name, {"vulns": []})} for name in names if found.get(name, 1)]
            return subprocess.CompletedProcess(command, 1, json.dumps({"dependencies": answers}), "")

        monkeypatch.setattr(audit_dependencies.urllib.request, "urlopen", urlopen)
        monkeypatch.setattr(audit_dependencies.subprocess, "run", run)
        return main()

    return audit


KNOWN = b'{"vulnerabilities": [{"id": "PYSEC-2019-217"}]}'


def test_where_nobody_can_be_asked_it_says_so_and_goes_on(audit, capsys):
    for answer in (urllib.error.URLError("no route"), TimeoutError(), b"<html>", b"{}", b'{"vulnerabilities": []}'):
        assert audit(answer, numpy=FOUND) == 0  # would fail if it were asked
        assert "NOT AUDITED" in capsys.readouterr().out


def test_a_clean_bill_needs_an_answer_without_findings_for_each_package(audit, monkeypatch, capsys):
    assert audit(KNOWN) == 0
    assert f"none in {len(audit_dependencies.installed())} packages" in capsys.readouterr().out
    for numpy in (FOUND, {"skip_reason": "not on PyPI"}, None):
        assert audit(KNOWN, numpy=numpy) == 1
    silent = subprocess.CompletedProcess([], 2, "", "it broke")
    monkeypatch.setattr(audit_dependencies.subprocess, "run", lambda *_, **__: silent)
    assert main() == 1


def test_what_is_accepted_is_no_finding(monkeypatch):
    assert len(problems({"a": "1"}, {"a": FOUND})) == 1
    monkeypatch.setattr(audit_dependencies, "ACCEPTED", {"CVE-1": "of a part that is not used"})
    assert problems({"a": "1"}, {"a": FOUND}) == []
