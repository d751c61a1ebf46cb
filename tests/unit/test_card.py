"""What a card says of a model, and that nothing in it is more than text."""

import re
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner

from streammoe.commands import main
from streammoe.persistence import read_checkpoint
from streammoe.pipeline.scores import saved_scores
from tests.unit import daemons

pytestmark = pytest.mark.usefixtures("logging_as_before")
HOSTILE = ["<script src=//evil.example>", "a|b `c` *d* [e](http://f) www.g.example @h", "&lt;\x1b[2J"]
TAGS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "section",
    "h1",
    "h2",
    "p",
    "ul",
    "li",
    "table",
    "tr",
    "th",
    "td",
}


@pytest.fixture
def state(tmp_path, monkeypatch):
    daemons.enter_small(tmp_path, monkeypatch, 0, 50)
    rows = [(i % 7, HOSTILE[i % 3], i % 5 + 10 * (i % 3)) for i in range(150)]
    daemons.write_csv("data.csv", [*rows, ("seven", "x", 1)], header="a,b|<i>,y")
    daemons.run()
    return "state"


def card(path, *more):
    result = CliRunner().invoke(main, ["card", path, *more])
    assert result.exit_code == 0, result.stderr
    return result.stdout


class Reader(HTMLParser):
    """Collects the tags, attributes and texts of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.texts = set(), set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.texts.append(data)


def test_a_page_has_every_name_as_text_and_loads_nothing(state):
    page = Reader()
    page.feed(card(state, "--html"))
    assert page.tags == TAGS
    assert page.attributes == {"lang", "charset", "http-equiv", "content"}
    levels = ", ".join([*HOSTILE[:2], r"&lt;\x1b[2J"])
    assert {"b|<i>", levels, "150", "rejected: wrong_type"} <= set(page.texts)


def test_markdown_has_the_same_words_and_no_mark_of_the_data(state):
    text, page = card(state), Reader()
    page.feed(card(state, "--html"))
    words = re.sub(r"\\(?=[^a-z\s])", "", text)
    assert not [each for each in page.texts[3:] if each.strip() and each not in words]
    bare = re.sub(r"\\[^a-z\s]", "", text)
    assert not set("<>`*_[]@&").intersection(bare)
    assert not re.search(r"://|www\.", bare)
    for table in re.findall(r"(?:^\|.*\n)+", bare, re.MULTILINE):
        assert len({row.count("|") for row in table.splitlines()}) == 1


def test_a_card_says_what_the_checkpoint_knows(state):
    text = card(state)
    scores = saved_scores(read_checkpoint(state))
    within, width = (scores.intervals[score, 0, 0.9].means()["running"] for score in ("coverage", "width"))
    assert f"| y | 90% | {within:.6g} | {width:.6g} |\n" in text
    for line in (
        r"^- file: .*path data\.csv",
        r"^\| a \| number \| 0 to 6 \|$",
        r"^\| baseline\\_rmse \| [\d.]+ \|$",
        r"^\| learned \| 150 \|$",
        r"^\| 0 \| \w+ \| [\d.]+% \| ",
        r"^- expert 0: y = ",
        r"^\| \S+ \| 0 \| started \|",
        r"^The shares in what is predicted: \w+ [\d.]+%",
    ):
        assert re.search(line, text, re.MULTILINE), line
