"""Files with several names are read once."""

import pytest

from tests.unit.connectors.reading import read, records, source, through_json, warnings


def paths_of(batches):
    return [batch.place(0)["path"] for batch in batches]


@pytest.fixture(params=["symbolic", "hard"])
def link(request):
    """Gives a file another name."""

    def make(path, target):
        if request.param == "hard":
            path.hardlink_to(target)
        else:
            path.symlink_to(target)

    return make


def test_a_folder_that_holds_a_link_to_itself_is_read_once(write, tmp_path, caplog):
    (tmp_path / "loop").symlink_to(".")
    write("x.csv", b"a\n1\n2\n")
    batches = read(tmp_path / "**" / "*.csv")
    assert records(batches) == [b"1", b"2"]
    assert paths_of(batches) == [str(tmp_path / "x.csv")]
    assert len(warnings(caplog)) == 1


def test_each_file_is_read_under_one_name_whatever_links_there_are(write, tmp_path, link, caplog):
    link(tmp_path / "a.csv", write("z.csv", b"a\n1\n"))
    write("m.csv", b"a\n2\n")
    batches = read(tmp_path / "*.csv")
    # The name that is no symbolic link, else the first one.
    name, content = ("m.csv", [b"2", b"1"]) if (tmp_path / "a.csv").is_symlink() else ("a.csv", [b"1", b"2"])
    assert records(batches) == content
    assert paths_of(batches)[0] == str(tmp_path / name)
    assert len(warnings(caplog)) == 1
    assert all(name in caplog.text for name in ("a.csv", "z.csv"))


def test_files_with_equal_content_are_all_read(write, tmp_path, caplog):
    write("a.csv", b"a\n1\n")
    write("b.csv", b"a\n1\n")
    assert records(read(tmp_path / "*.csv")) == [b"1", b"1"]
    assert not warnings(caplog)


def test_a_link_to_a_file_that_a_position_lists_is_not_read_again(write, tmp_path, link):
    path = write("m.csv", b"a\n1\n")
    (batch,) = read(tmp_path / "*.csv")
    link(tmp_path / "a.csv", path)
    assert read(tmp_path / "*.csv", through_json(batch.end)) == []
    write("n.csv", b"a\n2\n")
    assert records(read(tmp_path / "*.csv", through_json(batch.end))) == [b"2"]


def test_a_position_of_an_earlier_version_that_lists_both_names_continues_as_it_was(write, tmp_path, link):
    content = b"a\n" + b"".join(b"%d\n" % i for i in range(3000))
    path = write("a.csv", content)
    first, *_ = read(path, block_bytes=4096)
    both = {"kind": "file", "files": [*first.end["files"], {**first.end["files"][0], "path": str(tmp_path / "b.csv")}]}
    link(tmp_path / "b.csv", path)
    rest = records(read(tmp_path / "*.csv", through_json(both)))
    assert rest == 2 * [b"%d" % i for i in range(len(first), 3000)]


def test_links_are_followed_once_too(write, tmp_path, link, caplog):
    link(tmp_path / "a.csv", write("z.csv", b"a\n1\n"))
    followed = source(tmp_path / "*.csv", follow=True)
    followed.seek(None)
    first = followed.poll(5)
    assert records([first]) == [b"1"]
    assert followed.poll(0.05) is None
    assert len(first.end["files"]) == 1
    assert len(warnings(caplog)) == 1
    followed.close()
    again = source(tmp_path / "*.csv", follow=True)
    again.seek(through_json(first.end))
    with (tmp_path / "z.csv").open("ab") as stream:
        stream.write(b"2\n")
    assert records([again.poll(5)]) == [b"2"]
    assert again.poll(0.05) is None
    again.close()
