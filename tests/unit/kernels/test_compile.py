"""When machine code of the kernels is compiled, and when it comes from the cache on disk."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core.runtime import _nrt_python, rtsys

import streammoe
from streammoe import Gaussian, MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.kernels import compile as compiling
from streammoe.kernels.compile import jit

PROGRAM = """
import logging
import numpy as np
logging.basicConfig(level=logging.INFO)
from streammoe.kernels.batch import adaptive_weights
from streammoe.kernels.compile import compile_seconds
out = np.empty(1)
adaptive_weights(np.array([[0.2, 0.3, 0.5]]), out)
print(out[0], compile_seconds())
"""


@pytest.mark.slow  # it compiles two kernels
def test_compiling_is_reported_once_for_each_cache_and_repeated_after_an_edit_of_what_is_inlined(tmp_path):
    copy = tmp_path / "streammoe"
    shutil.copytree(Path(streammoe.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def found():
        command = [sys.executable, "-c", PROGRAM]
        run = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
        weight, seconds = map(float, run.stdout.split())
        assert run.stderr.count("compiling") == (seconds > 0.0), "that it takes a while is said once"
        return [weight, seconds]

    assert found()[1] > 0.0
    assert found() == [1.0, 0.0]
    softmax = copy / "kernels" / "softmax.py"
    source = softmax.read_text()
    edited = source.replace("if apart <= 0.0:\n        return 1.0\n", "if apart <= 0.0:\n        return 0.5\n")
    assert edited != source
    softmax.write_text(edited)
    weight, seconds = found()
    assert weight == 0.5
    assert seconds > 0.0


def add_one(x: float) -> float:
    return x + 1.0


def damage(path, how):
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(
        {
            "is empty": b"",
            "ends early": content[:middle],
            "has zeros within": content[:middle] + bytes(64) + content[middle + 64 :],
        }[how]
    )


@pytest.mark.parametrize(
    ("how", "suffix"), [("is empty", "nbi"), ("ends early", "nbc"), ("has zeros within", "nbi"), ("is empty", "nbc")]
)
def test_what_is_damaged_in_the_cache_is_compiled_again_and_replaced(how, suffix, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    jit(add_one)(1.0)
    (path,) = tmp_path.rglob(f"*.{suffix}")
    damage(path, how)
    again = jit(add_one)
    assert again(1.0) == 2.0
    assert not again.stats.cache_hits
    assert str(path) in caplog.text
    caplog.clear()
    mended = jit(add_one)
    assert mended(1.0) == 2.0
    assert mended.stats.cache_hits
    assert not caplog.messages


def is_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    jit(add_one)(1.0)
    (path,) = tmp_path.rglob("*.nbi")
    path.unlink()
    path.mkdir()


def is_full(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "replace", fail)


def is_nowhere(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "UserProvidedCacheLocator")


@pytest.mark.parametrize("folder", [is_a_folder, is_full, is_nowhere])
def test_without_a_cache_kernels_are_compiled_and_once_it_is_said(folder, tmp_path, monkeypatch, caplog):
    compiling.warn_not_kept.cache_clear()
    folder(tmp_path, monkeypatch)
    for _ in range(2):
        kernel = jit(add_one)
        assert kernel(1.0) == 2.0
        assert not kernel.stats.cache_hits
    assert ["NUMBA_CACHE_DIR" in message for message in caplog.messages].count(True) == 1


FIRST_START = """
import sys
import numpy as np
from streammoe import MoEClassifier, MoERegressor

rng = np.random.default_rng(0)
X = rng.standard_normal((400, 3))
regressor, classifier = MoERegressor(2, warmup=200), MoEClassifier(2, warmup=200)
for model, targets in ((regressor, X[:, 0]), (classifier, (X[:, 0] > 0.0).astype(int))):
    model.learn_array(X, targets)
    model.predict_array(X)
    for row, target in zip(X[:50].tolist(), targets[:50].tolist()):
        x = dict(zip(model.fields, row))
        model.predict_one(x)
        model.learn_one(x, target)
for name, module in sorted(sys.modules.items()):
    if name.startswith("streammoe."):
        for kernel in vars(module).values():
            if hasattr(kernel, "as_part") and kernel.py_func.__module__ == name and kernel.signatures:
                print(f"{name.rpartition('.')[2]}.{kernel.py_func.__name__}", len(kernel.signatures))
"""


@pytest.mark.process
def test_models_compile_each_kernel_for_one_kind_of_arguments_and_none_that_they_do_not_need():
    done = subprocess.run([sys.executable, "-c", FIRST_START], capture_output=True, text=True, check=True)
    found = {name: int(count) for name, count in map(str.split, done.stdout.splitlines())}
    needed = {f"{family}.{kernel}" for family in ("gaussian", "categorical") for kernel in ("learn", "score_rows")}
    assert found.keys() > {*needed, "batch._fit_by_newton", "features.screen_rows"}
    assert "batch._fit_by_conjugate_gradients" not in found
    assert {name: count for name, count in found.items() if count > 1} == {}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (MoERegressor, {}),
        (MoERegressor, {"expert": "laplace"}),
        (MoEMultiTargetRegressor, {"expert": Gaussian("full")}),
        (MoEClassifier, {}),
    ],
)
def test_kernels_free_what_they_allocate(kind, options):
    rng = np.random.default_rng(1)
    X, Y = rng.normal(size=(200, 2)), rng.normal(size=(200, 2))
    targets = (Y[:, 0] > 0.0).astype(int) if kind is MoEClassifier else Y
    targets = targets[:, 0] if kind is MoERegressor else targets
    model = kind(n_experts=2, warmup=0, **options)
    model.learn_array(X, targets)
    _nrt_python.memsys_enable_stats()
    before = rtsys.get_allocation_stats()
    model.learn_array(X, targets)
    after = rtsys.get_allocation_stats()
    _nrt_python.memsys_disable_stats()
    assert after.alloc > before.alloc
    assert after.alloc - after.free == before.alloc - before.free
    assert after.mi_alloc - after.mi_free == before.mi_alloc - before.mi_free
