import re

import pytest

pytest.importorskip("matplotlib")

from benchmarks import pictures

pytestmark = pytest.mark.slow

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("startup", "four experts, full gate"),
        ("steps", "constant 0.01, raw"),
        ("prior", "0.001"),
        ("drift", "page_hinkley"),
        ("choice", "auto: "),
    ],
)
def test_each_picture_is_drawn_and_its_figures_are_printed(name, told, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(pictures, "WARMUPS", (0, 40))
    monkeypatch.setattr(pictures, "STRENGTHS", (0.0, 0.001))
    pictures.draw([name], tmp_path / "new", seeds=1, events=80)
    drawn = (tmp_path / "new" / f"{name}.png").read_bytes()
    assert drawn.startswith(PNG)
    assert 5_000 < len(drawn) < 60_000
    assert told in capsys.readouterr().out


def test_equal_arguments_give_equal_files_and_other_streams_others(tmp_path):
    for folder, seeds in (("once", 1), ("again", 1), ("other", 2)):
        pictures.draw(["steps"], tmp_path / folder, seeds=seeds, events=80)
    once, again, other = ((tmp_path / folder / "steps.png").read_bytes() for folder in ("once", "again", "other"))
    assert once == again
    assert once != other


def test_without_a_folder_the_figures_alone_are_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pictures.draw(["drift"], None, seeds=1, events=80)
    assert "default" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_each_picture_of_the_page_is_one_that_is_drawn():
    docs = pictures.Path(pictures.__file__).parents[1] / "docs"
    page = (docs / "learning.md").read_text(encoding="utf-8")
    shown = re.findall(r"]\(pictures/(\w+)\.png\)", page)
    assert shown
    assert set(shown) <= set(pictures.PICTURES)
    assert {path.name for path in (docs / "pictures").iterdir()} == {f"{name}.png" for name in shown}
