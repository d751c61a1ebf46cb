"""What the documents say of tests and files must be true."""

import doctest
import re
from pathlib import Path

import pytest

from streammoe.engine.portfolio import MEMBERS

ROOT = Path(__file__).parents[2]
PROMISES = {"kafka.md": "What happens when", "delivery.md": "What happens when", "reliability.md": "What is promised"}
"""Documents with a table of what is promised, and its title; the last column names tests."""
DOCUMENTS = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md"])


@pytest.mark.parametrize("document", PROMISES)
def test_each_failure_names_the_test_that_shows_it(document):
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    table = text.split(f"## {PROMISES[document]}\n")[1].split("\n## ")[0]
    head, _, *lines = [line for line in table.splitlines() if line.startswith("|")]
    rows = [row for row in lines if not row.startswith("| **")]  # those are titles
    assert len(rows) > 10
    for row in rows:
        assert row.count(" | ") == head.count(" | "), row
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row.rpartition(" | ")[2])
        assert named, row
        for path, name in named:
            source = (ROOT / "tests" / path).read_text(encoding="utf-8")
            assert re.search(rf"^( *def {name}\(|{name} = )", source, re.MULTILINE), (path, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "document", [path for path in DOCUMENTS if ">>> " in path.read_text(encoding="utf-8")], ids=lambda path: path.name
)
def test_examples_print_what_they_show(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    found = doctest.testfile(str(document), module_relative=False, optionflags=flags, encoding="utf-8")
    assert found.attempted > 0
    assert found.failed == 0
    assert not list(tmp_path.iterdir()), "an example leaves files where it is run"


def test_the_table_of_who_predicts_has_each_member_in_its_order():
    text = (ROOT / "docs" / "learning.md").read_text(encoding="utf-8").split("## Who predicts\n")[1]
    table = text.partition("|\n\n")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == MEMBERS


def test_commands_that_repeat_a_figure_exist():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for document in [*DOCUMENTS, *ROOT.glob("docs/adr/*.md"), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        text = document.read_text(encoding="utf-8")
        for module in re.findall(r"python\s+-m\s+((?:benchmarks|tests|scripts)[\w.]*)", text):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), (document.name, module)
        assert set(re.findall(r"\bmake\s+([a-z]+-[a-z-]+|test|bench|demo|lint|audit)\b", text)) <= {*targets}


def test_links_lead_somewhere():
    for document in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", document.read_text(encoding="utf-8")):
            path, _, heading = target.partition("#")
            file = (document.parent / path).resolve() if path else document
            assert file.exists(), (document.name, target)
            titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE) if heading else ()
            anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
            assert not heading or heading in anchors, (document.name, target)
