import io
import json
import subprocess
import urllib.error
from pathlib import Path

import pytest

from scripts import audit_dependencies
from scripts.audit_dependencies import main, problems


@pytest.fixture
def index(monkeypatch):
    """Lets the index answer with this, or raise it."""

    def index(answer):
        def urlopen(address, timeout):
            if isinstance(answer, Exception):
                raise answer
            return io.BytesIO(answer)

        monkeypatch.setattr(audit_dependencies.urllib.request, "urlopen", urlopen)

    return index


@pytest.fixture
def auditor(monkeypatch):
    """Lets pip-audit find what is given for each package; nothing in the others."""

    def auditor(**found):
        def run(command, **_):
            asked = Path(command[command.index("--requirement") + 1]).read_text().split()
            names = [line.split("==")[0] for line in asked]
            answers = [{"name": name, **found.get(name, {"vulns": []})} for name in names if found.get(name, 1)]
            return subprocess.CompletedProcess(command, 1, json.dumps({"dependencies": answers}), "")

        monkeypatch.setattr(audit_dependencies.subprocess, "run", run)

    return auditor


@pytest.mark.parametrize(
    "answer",
    [urllib.error.URLError("no route"), TimeoutError("timed out"), b"<html>", b"{}", b'{"vulnerabilities": []}'],
    ids=str,
)
def test_where_nobody_can_be_asked_it_says_so_and_goes_on(index, auditor, answer, capsys):
    index(answer)
    auditor(numpy={"vulns": [{"id": "CVE-1", "fix_versions": []}]})  # would fail if it were asked
    assert main() == 0
    assert "NOT AUDITED, nobody could be asked (" in capsys.readouterr().out


KNOWN = b'{"vulnerabilities": [{"id": "PYSEC-2019-217"}]}'


def test_a_clean_bill_counts_the_packages(index, auditor, capsys):
    index(KNOWN)
    auditor()
    assert main() == 0
    assert f"none in {len(audit_dependencies.installed())} packages" in capsys.readouterr().out
    assert {"numpy", "pydantic", "prometheus-client"} <= audit_dependencies.installed().keys()


def test_a_finding_fails(index, auditor, capsys):
    index(KNOWN)
    auditor(numpy={"vulns": [{"id": "CVE-1", "fix_versions": ["99.0"]}]})
    assert main() == 1
    assert ": CVE-1, mended in 99.0" in capsys.readouterr().out


@pytest.mark.parametrize("answer", [{"skip_reason": "not on PyPI"}, None])
def test_a_package_that_was_not_audited_fails(index, auditor, answer, capsys):
    index(KNOWN)
    auditor(numpy=answer)
    assert main() == 1
    assert "was not audited: " in capsys.readouterr().out


def test_an_auditor_that_says_nothing_fails(index, monkeypatch, capsys):
    index(KNOWN)
    silent = subprocess.CompletedProcess([], 2, "", "it broke")
    monkeypatch.setattr(audit_dependencies.subprocess, "run", lambda *_, **__: silent)
    assert main() == 1
    assert "pip-audit ended with 2: it broke" in capsys.readouterr().out


def test_what_is_accepted_is_no_finding(monkeypatch):
    answers = {"a": {"vulns": [{"id": "CVE-1", "fix_versions": []}]}}
    assert problems({"a": "1"}, answers) == ["a 1: CVE-1, mended in no version yet"]
    monkeypatch.setattr(audit_dependencies, "ACCEPTED", {"CVE-1": "of a part that is not used"})
    assert problems({"a": "1"}, answers) == []
