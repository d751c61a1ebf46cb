"""docs/checkpoint-format.md is enough to read a checkpoint, and says what real ones hold."""

import re
from pathlib import Path

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, assembly
from streammoe.commands.inspect import look_into
from streammoe.configuration import settings_from
from streammoe.daemon.signals import StopFlag
from streammoe.engine.state import MMState
from streammoe.persistence import decode, state_digest
from streammoe.persistence.store import read_checkpoint

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "checkpoint-format.md").read_text(encoding="utf-8")
GOLDEN = sorted((ROOT / "tests" / "golden" / "format-1").glob("*.safetensors"))
DTYPES = {"float64": "F64", "int64": "I64", "uint8": "bytes", "bool": "BOOL"}


def section(title):
    return re.split(r"^#+ ", TEXT.split(f"## {title}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]


def table(title):
    lines = [line for line in section(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def documented():
    """Names of arrays, or patterns of them, with what the row says of their shapes."""
    return [(name, row[1]) for row in table("Arrays") for name in re.findall(r"`([^`]+)`", row[0])]


@pytest.fixture(scope="module")
def models():
    """One of each family, before, during and after its warm-up."""
    return list(_models())


def _models():
    X = np.random.default_rng(0).normal(size=(80, 2))
    y = X[:, 0]
    for kind, target, more in (
        (MoERegressor, y, {}),
        (MoEMultiTargetRegressor, np.column_stack([y, -y]), {"covariance": "diagonal"}),
        (MoEMultiTargetRegressor, np.column_stack([y, -y]), {"covariance": "full"}),
        (MoEClassifier, (y > 0).astype(int), {}),
    ):
        for n in (0, 20, 80):
            model = kind(n_experts=2, warmup=40, warmup_restarts=1, **more)
            if n:
                model.learn_array(X[:n], target[:n])
            yield model
        racing = kind(n_experts="auto", max_experts=2, warmup=40, warmup_restarts=1, **more)
        racing.learn_array(X, target)
        yield racing
        grouping = kind(n_experts=2, warmup=40, warmup_restarts=1, batch_size=16, **more)
        grouping.learn_array(X, target)
        yield grouping
        early = kind(n_experts=2, warmup=600, **more)
        early.learn_array(np.tile(X, (6, 1))[:410], np.concatenate([target] * 6)[:410])
        yield early
    yield MoERegressor(2, drift="page_hinkley")


@pytest.fixture(scope="module")
def contents(models, tmp_path_factory):
    """Arrays and metadata of golden files, which daemons wrote, of a newer one, and of models saved from Python."""
    golden = [decode(path.read_bytes(), path.name) for path in GOLDEN]
    folder = tmp_path_factory.mktemp("daemon")
    (folder / "data.jsonl").write_text('{"a": 1, "y": 2}\n')
    tables = {
        "source": {"kind": "file", "path": str(folder / "data.jsonl")},
        "schema": {"target": "y"},
        "checkpoint": {"dir": str(folder)},
        "metrics": {"enabled": False},
        "predictions": {"kind": "file", "path": str(folder / "rows.jsonl")},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "compile_kernels", lambda settings=None: None)
        with assembly.open_daemon(settings_from(tables, "test")) as running:
            running.daemon.run(StopFlag())
    return [*golden, read_checkpoint(folder), *((model.arrays(), model.describe()) for model in models)]


def test_the_reader_on_that_page_reads_every_golden_file_and_refuses_damage():
    (source,) = re.findall(r"```python\n(import hashlib\n.*?)```", TEXT, re.DOTALL)
    assert "streammoe import" not in source
    names = {}
    exec(source, names)
    read = names["read"]
    assert len(GOLDEN) == 16
    for path in GOLDEN:
        data = path.read_bytes()
        arrays, metadata = read(data)
        kept = decode(data, path.name)
        assert metadata == {"format": 1, **kept.metadata}
        assert {name: (array.dtype.name, array.shape, array.tobytes()) for name, array in kept.arrays.items()} == arrays
        flipped = bytearray(data)
        flipped[-1] ^= 1
        for damaged in (data[:-1], data + b"\0", bytes(flipped)):
            with pytest.raises(ValueError):
                read(damaged)
        newer = data.replace(rb"\"format\":1", rb"\"format\":2")
        assert newer != data
        with pytest.raises(ValueError):
            read(newer)


def test_every_key_of_the_metadata_is_there_and_no_other(contents, models):
    said = {row[0].strip("`"): row[1] for row in table("Metadata")}
    held = set().union(*(metadata for _, metadata in contents)) | {"format"}
    assert set(said) == held
    saved = set().union(*(model.describe() for model in models)) | {"format"}
    assert {key for key, by in said.items() if by == "both"} == saved


def test_keys_within_are_named_too(contents):
    text = section("Metadata")
    for _, metadata in contents:
        inner = [*metadata["model"], *metadata.get("counters", {}), *metadata.get("settings", {})]
        inner += metadata.get("counters", {}).get("outcomes", {})
        for name, value in metadata.get("scores", {}).items():
            inner += value if isinstance(value, dict) else [name]
        for key in inner:
            assert f"`{key}`" in text, key


def test_every_array_is_there_with_its_type(contents):
    patterns = [(re.compile(re.escape(name).replace(r"\*", ".+")), said) for name, said in documented()]
    used = set()
    for arrays, _ in contents:
        for name, array in arrays.items():
            fits = [(pattern, said) for pattern, said in patterns if pattern.fullmatch(name)]
            assert len(fits) == 1, name
            pattern, said = fits[0]
            used.add(pattern.pattern)
            kind = DTYPES[array.dtype.name]
            if name.startswith(("warmup.recursive.", "warmup.interim.", "race.0.", "race.1.")):
                assert name.rpartition(".")[2] in MMState._fields
            elif kind == "F64":
                assert "`" not in said, name
                assert "bytes" not in said, name
            else:
                assert kind in said, name
    assert used == {pattern.pattern for pattern, _ in patterns}
    assert {f"state.{name}" for name in MMState._fields} <= {name for name, _ in documented()}


def test_the_digest_of_the_state_leaves_out_what_the_page_says():
    (said,) = re.findall(r"every array but (.*?)\. Equal", section("State digest"), re.DOTALL)
    left_out = re.compile("|".join(re.escape(name).replace(r"\*", ".+") for name in re.findall(r"`([^`]+)`", said)))
    for path in GOLDEN:
        arrays, metadata = decode(path.read_bytes(), path.name)
        kept = {name: array for name, array in arrays.items() if not left_out.fullmatch(name)}
        assert len(kept) < len(arrays)
        assert state_digest(kept) == metadata["state_digest"]


def test_everything_that_inspect_shows_is_named(tmp_path):
    text = section("Looking into one")
    for path in GOLDEN[:2]:
        (tmp_path / f"checkpoint-{len(path.name):012d}.safetensors").write_bytes(path.read_bytes())
    found = look_into(tmp_path)
    for name in [*found, *found["generations"][0]]:
        assert f"`{name}`" in text, name
