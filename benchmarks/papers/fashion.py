"""Do two experts learn Fashion-MNIST with half of its images inverted, in one pass, [MD] §6, Tables 1 and 2?

60,000 images to learn, 10,000 to score, 28 × 28 pixels in [0, 1], averaged to 14 × 14; each image is inverted with
probability ½, in both parts. Gate and two 10-class experts are linear in the pixels. One pass learns each image once.
The paper's methods see all images in each of 100 rounds, from random starts of length 1, 25 times; here EM sees a part
of the images, once.

The images come from Debian's package dataset-fashion-mnist, or from a folder fashion-mnist under `--data`.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import tasks
from benchmarks.papers.sheets import Options, Sheet, not_run
from benchmarks.report import Target
from streammoe import MoEClassifier, batch

TITLE = "[MD] Fashion-MNIST, half of the images inverted"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
HOW_TO_GET = [
    f"Not found: {FILES[0]} and the three files that belong to it.",
    f"On Debian or Ubuntu: apt-get install dataset-fashion-mnist, which puts them into {DEBIAN}.",
    "Or get them from https://github.com/zalandoresearch/fashion-mnist, and put them into the folder fashion-mnist",
    "under the one that --data, DATA= or STREAMMOE_DATA names.",
]
SIDE, POOL = 14, 2
CLASSES = tuple(range(10))
PART = 20_000
"""Images that EM sees here."""
ROUNDS = 15
"""Each solves regressions to convergence, so that few are needed."""
DEFAULT = "2 experts, default settings"
WARM = "2 experts, warmup=3000"
PUBLISHED = {
    "the paper, EM, 100 rounds": (78.5, 0.827),
    "the paper, gradient EM": (66.0, 1.29),
    "the paper, GD": (62.4, 1.30),
    "the paper, one expert, unaltered": (83.2, None),
    "the paper, one expert": (10.2, None),
}
"""Accuracy and cross-entropy."""


class Images(NamedTuple):
    """Pixels in [0, 1] and classes."""

    X: np.ndarray
    """(n, side²)."""
    y: np.ndarray
    """(n,)."""


class Found(NamedTuple):
    """Result of a run."""

    events: int
    """Images learned, each once, or the rows of a batch fit."""
    accuracy: float
    """Percent of the test images."""
    cross_entropy: float
    """Nats a test image."""
    seconds: float
    note: str = ""


def folder_of(data: Path | None) -> Path | None:
    """Return the folder with all four files; None if there is none."""
    given = tasks.data_folder(data)
    candidates = [*([given / "fashion-mnist", given] if given else []), DEBIAN]
    return next((folder for folder in candidates if all((folder / name).exists() for name in FILES)), None)


def read_idx(path: Path) -> np.ndarray:
    """Read an array of bytes: a magic number with its dimensions, the size of each, the values."""
    content = gzip.decompress(path.read_bytes())
    dimensions = content[3]
    shape = np.frombuffer(content, ">i4", dimensions, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def images(folder: Path, altered: bool) -> tuple[Images, Images]:
    """Return the images to learn, in a random order, and those to score."""
    rng = np.random.default_rng(0)
    parts = []
    for pixels, labels in ((FILES[0], FILES[1]), (FILES[2], FILES[3])):
        # Four bytes a pixel, or several processes would need gigabytes.
        X = read_idx(folder / pixels) / np.float32(255.0)
        X = X.reshape(len(X), SIDE, POOL, SIDE, POOL).mean(axis=(2, 4)).reshape(len(X), SIDE * SIDE)
        inverted = rng.random((len(X), 1)) < 0.5
        parts.append(Images(np.where(inverted, 1.0 - X, X) if altered else X, read_idx(folder / labels).astype(int)))
    order = rng.permutation(len(parts[0].y))
    return Images(*(values[order] for values in parts[0])), parts[1]


def scored(model: MoEClassifier, test: Images, **found: Any) -> Found:
    """Score a model on the test images."""
    accuracy = 100.0 * float(np.mean(model.predict_array(test.X) == test.y))
    return Found(accuracy=accuracy, cross_entropy=-float(np.mean(model.log_likelihood_array(*test))), **found)


def streamed(folder: Path, limit: int | None, *, experts: int = 2, altered: bool = True, **settings: Any) -> Found:
    """Learn all images in one pass."""
    learn, test = images(folder, altered)
    model = MoEClassifier(experts, classes=CLASSES, **settings)
    began = time.process_time()
    model.learn_array(learn.X[:limit], learn.y[:limit])
    return scored(model, test, events=len(learn.y[:limit]), seconds=time.process_time() - began)


def fitted(folder: Path, limit: int | None) -> Found:
    """Fit a part of the images in full-batch rounds from random parameters of length 1."""
    learn, test = images(folder, altered=True)
    rng = np.random.default_rng(0)
    p = 1 + SIDE * SIDE
    gate, experts = rng.normal(size=(1, p)), rng.normal(size=(2, 9, p))
    start = {
        "gate": gate / np.linalg.norm(gate),
        "experts": experts / np.linalg.norm(experts, axis=2, keepdims=True),
        # Of the statistics a batch fit needs nothing; any will do.
        "masses": np.full(2, 0.5),
        "gate_gram": np.eye(p),
        "expert_grams": np.stack([np.eye(p)] * 2),
        "n": 1,
    }
    model = MoEClassifier.from_parameters(start, feature_names=[f"x{i}" for i in range(p - 1)], classes=CLASSES)
    rows = slice(PART if limit is None else limit)
    began = time.process_time()
    done = batch.fit(model, learn.X[rows], learn.y[rows], start="model", rounds=ROUNDS)
    return scored(model, test, events=done.n, seconds=time.process_time() - began, note=f"{done.rounds} rounds")


def call(run: Callable[[], Found]) -> Found:
    """Call; `map` needs a function of a module."""
    return run()


def sheets(options: Options) -> list[Sheet]:
    """Compute the table, or say how to get the images."""
    folder = folder_of(options.data)
    if folder is None:
        return [not_run(TITLE, HOW_TO_GET)]
    limit = 600 if options.quick else None
    stream = partial(streamed, folder, limit)
    runs: dict[str, Callable[[], Found]] = {
        f"EM on {PART:,} images": partial(fitted, folder, limit),
        DEFAULT: stream,
        WARM: partial(stream, warmup=3000),
        "one expert, unaltered": partial(stream, experts=1, altered=False),
        "one expert": partial(stream, experts=1),
    }
    found = dict(zip(runs, options.map(call, runs.values()), strict=True))
    rows: list[list[object]] = [
        [name, f"{one.events:,}", f"{one.accuracy:.1f}", f"{one.cross_entropy:.3f}", f"{one.seconds:.0f}", one.note]
        for name, one in found.items()
    ]
    rows += [
        [name, "60,000", f"{accuracy:.1f}", "" if cross_entropy is None else f"{cross_entropy:.3f}", "", ""]
        for name, (accuracy, cross_entropy) in PUBLISHED.items()
    ]
    return [
        Sheet(
            f"{TITLE}, accuracy in % and cross-entropy in nats on 10,000 test images",
            ["learner", "images", "accuracy", "cross-entropy", "CPU seconds", "note"],
            rows,
            [
                Target(f"{DEFAULT}: accuracy, the paper's EM", found[DEFAULT].accuracy, 78.5, least=True),
                Target(f"{DEFAULT}: cross-entropy, the paper's EM", found[DEFAULT].cross_entropy, 0.827),
            ],
        )
    ]
