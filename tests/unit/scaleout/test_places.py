import os

import fsspec
import pytest

from streammoe.errors import CheckpointError, ConfigError, RetriableCheckpointError
from streammoe.scaleout import places
from streammoe.scaleout.places import MissingFileError, place_of


@pytest.fixture(params=["folder", "file_url", "memory"])
def place(request, tmp_path):
    if request.param == "memory":
        yield place_of("memory://bucket/shard-0", "--out")
        fsspec.filesystem("memory").store.clear()
    else:
        start = "" if request.param == "folder" else "file://"
        yield place_of(f"{start}{tmp_path}/deep/folder", "--out")


def test_what_is_written_is_listed_read_replaced_and_removed(place):
    assert place.names() == []
    place.write("b", b"first ", memoryview(b"piece"))
    place.write("a", b"")
    assert place.names() == ["a", "b"]
    assert (place.read("a"), place.read("b")) == (b"", b"first piece")
    place.write("b", b"second")
    assert place.read("b") == b"second"
    place.delete("b")
    place.delete("b")
    assert place.names() == ["a"]
    with pytest.raises(MissingFileError, match="there is no such file any more"):
        place.read("b")


def test_no_more_than_a_model_can_have_is_read(place, monkeypatch):
    monkeypatch.setattr(places, "LARGEST_FILE", 4)
    place.write("a", b"1234")
    assert place.read("a") == b"1234"
    place.write("a", b"12345")
    with pytest.raises(CheckpointError, match="5 bytes; a model has at most 4"):
        place.read("a")


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(CheckpointError):
            place_of(tmp_path, "--out").read(name)


def test_a_folder_that_cannot_be_used_for_now_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    place = place_of(tmp_path / "file", "--out")
    for attempt in (place.names, lambda: place.write("a", b""), lambda: place.read("a"), lambda: place.delete("a")):
        with pytest.raises(RetriableCheckpointError, match="cannot be"):
            attempt()


def test_any_error_of_a_store_is_one_of_the_place_without_secrets(monkeypatch):
    place = place_of("memory://me:word@bucket/folder", "--out")
    assert place.name == "memory://***@bucket/folder"

    def fail(*_args, **_options):
        raise KeyError("PUT https://me:word@host/bucket?signature=abc refused\n")

    for method in ("ls", "cat_file", "pipe_file", "rm_file"):
        monkeypatch.setattr(type(fsspec.filesystem("memory")), method, fail)
    for attempt in (place.names, lambda: place.write("a", b""), lambda: place.read("a"), lambda: place.delete("a")):
        with pytest.raises(RetriableCheckpointError) as caught:
            attempt()
        text = str(caught.value)
        assert "refused" in text
        assert not any(secret in text for secret in ("word", "abc", "signature", "\n"))
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__


def test_no_listing_is_taken_from_a_cache(monkeypatch):
    """Clients of stores keep listings unless they are told to forget them."""
    memory = type(fsspec.filesystem("memory"))
    place, listing, kept = place_of("memory://bucket/folder", "DIR"), memory.ls, {}

    def cached(self, path, **options):
        return kept.setdefault(path, listing(self, path, **options))

    monkeypatch.setattr(memory, "ls", cached)
    monkeypatch.setattr(memory, "invalidate_cache", lambda self, path=None: kept.clear())
    try:
        place.write("a", b"")
        assert place.names() == ["a"]
        place.write("b", b"")
        assert place.names() == ["a", "b"]
    finally:
        fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "--out: got an empty text"),
        ("nothing-knows-this://me:word@host/x", r"--out: got nothing-knows-this://\*\*\*@host/x, which cannot be used"),
        ("simplecache::memory://x", "one URL without '::'"),
    ],
)
def test_a_place_that_cannot_be_is_an_error_of_the_option(text, words):
    with pytest.raises(ConfigError, match=words):
        place_of(text, "--out")


def test_only_urls_need_fsspec(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    (tmp_path / "s3:x").mkdir()
    assert place_of(tmp_path / "s3:x", "--out").names() == []
    monkeypatch.chdir(tmp_path)
    assert place_of("s3:x", "--out").names() == []  # a folder that exists is meant
    with pytest.raises(ConfigError, match=r"--out s3://bucket needs fsspec, .*\[distributed\]"):
        place_of("s3://bucket", "--out")
