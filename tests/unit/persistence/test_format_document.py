"""docs/checkpoint-format.md is enough to read a checkpoint, and says what real ones hold."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from streammoe import assembly
from streammoe.configuration import settings_from
from streammoe.daemon.signals import StopFlag
from streammoe.engine.members import CURVED, KINDS, SERIES
from streammoe.kernels.state import MMState
from streammoe.persistence import CheckpointStore, decode
from streammoe.persistence.store import read_checkpoint
from streammoe.pipeline.label_join import LabelJoin
from streammoe.pipeline.schema import Schema
from streammoe.scaleout import watcher
from streammoe.scaleout.watcher import Watcher
from streammoe.settings import Labels
from tests.batches import batch_of
from tests.unit.estimators.damages import DAMAGES, outputs
from tests.unit.scaleout.shards import Daemon, Largest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "checkpoint-format.md").read_text(encoding="utf-8")
GOLDEN = sorted((ROOT / "tests" / "golden" / "format-1").glob("*.safetensors"))
DTYPES = {"float64": "F64", "int64": "I64", "uint8": "bytes", "bool": "BOOL"}


def section(title):
    return re.split(r"^#+ ", TEXT.split(f"## {title}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]


def table(title):
    lines = [line for line in section(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


STATES = tuple(f"portfolio.{kind.name}." for kind in (*KINDS, SERIES, CURVED))
"""Prefixes of the arrays of further states."""


def names_in(text):
    """The names that a text quotes, as patterns."""
    return {name: re.escape(name).replace(r"\*", ".+") for name in re.findall(r"`([^`]+)`", text)}


@pytest.fixture(scope="module")
def models():
    """Models in every state."""
    return [outputs(), *(make() for make, _ in DAMAGES.values())]


@pytest.fixture(scope="module")
def contents(models, tmp_path_factory):
    """Arrays and metadata of golden files, of a daemon's with predictions, of global models, and of saved models."""
    folder = tmp_path_factory.mktemp("daemon")
    (folder / "data.jsonl").write_text('{"id": 1, "a": 1, "b": null}\n{"id": 1, "y": 2}\n{"id": 2, "a": 3}\n')
    files = {"source": "data.jsonl", "predictions": "rows.jsonl"}
    tables = {
        **{name: {"kind": "file", "path": str(folder / file)} for name, file in files.items()},
        "schema": {"target": "y"},
        "labels": {"key": "id"},
        "model": {"lags": 1, "reservoir": 10},
        "challenger": {"n_experts": 2},
        "checkpoint": {"dir": str(folder)},
        "metrics": {"enabled": False},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "compile_kernels", lambda settings=None: None)
        with assembly.open_daemon(settings_from(tables, "test")) as running:
            running.daemon.run(StopFlag())
    golden = [decode(path.read_bytes(), path.name) for path in GOLDEN]
    out = tmp_path_factory.mktemp("out")
    shard = Daemon(tmp_path_factory.mktemp("shard"))
    shard.save()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watcher, "reduce_with_details", Largest())
        Watcher({"north": shard.store.folder}, CheckpointStore(out)).round()
    merged = [read_checkpoint(path) for path in out.iterdir()]
    join = LabelJoin(Labels(key="id", max_pending=9), Schema(("y",)))
    join.join(replace(batch_of([{"id": 1, "a": 1}], "jsonl"), headers=[(("name", b"value"),)]))  # which Kafka has
    return [
        *golden,
        read_checkpoint(folder),
        (join.arrays(), {}),
        *merged,
        *((model.arrays(), model.describe()) for model in models),
    ]


def test_the_reader_on_that_page_reads_every_golden_file_and_rejects_damage():
    (source,) = re.findall(r"```python\n(import hashlib\n.*?)```", TEXT, re.DOTALL)
    assert "streammoe import" not in source
    names = {}
    exec(source, names)
    assert len(GOLDEN) == 16
    for path in GOLDEN:
        data = path.read_bytes()
        arrays, metadata = names["read"](data)
        kept = decode(data, path.name)
        assert metadata == {"format": 1, **kept.metadata}
        assert {name: (array.dtype.name, array.shape, array.tobytes()) for name, array in kept.arrays.items()} == arrays
        newer = data.replace(rb"\"format\":1", rb"\"format\":2")
        for wrong in (data[:-1], data + b"\0", data[:-1] + bytes([data[-1] ^ 1]), newer):
            with pytest.raises(ValueError):
                names["read"](wrong)


def test_every_key_of_the_metadata_is_there_and_no_other(contents, models):
    said = {row[0].strip("`"): row[1] for row in table("Metadata")}
    written = set().union(*(metadata for _, metadata in contents))
    assert set(said) == written | {"format", "restored", "promoted"}
    saved = set().union(*(model.describe() for model in models)) | {"format"}
    assert {key for key, by in said.items() if by == "both"} == saved
    parts = [
        table for _, metadata in contents if "global" in metadata for table in metadata["global"]["shards"].values()
    ]
    documented = {name for row in table("A global model")[:6] for name in names_in(row[0])}
    assert [documented] == [set(part) for part in parts]


def test_every_array_is_there_with_its_type(contents):
    patterns = {pattern: row[1] for row in table("Arrays") for pattern in names_in(row[0]).values()}
    used = set()
    for name, dtype in {(name, array.dtype.name) for arrays, _ in contents for name, array in arrays.items()}:
        found = [pattern for pattern in patterns if re.fullmatch(pattern, name)]
        assert len(found) == 1, f"docs/checkpoint-format.md describes {name} in {len(found)} rows"
        pattern = found[0]
        used.add(pattern)
        said, kind = patterns[pattern], DTYPES[dtype]
        if name.startswith(STATES):
            assert name.rpartition(".")[2] in MMState._fields
        elif name.startswith(("fit.encoder.", "challenger.", "champion.")):
            assert any(re.fullmatch(pattern, name.partition(".")[2]) for pattern in patterns)
        elif kind == "F64":
            assert "`" not in said, name
            assert "bytes" not in said, name
        else:
            assert kind in said, name
    assert used == patterns.keys()
    assert {re.escape(f"state.{name}") for name in MMState._fields} <= used
