"""What programs import, as running them shows; import contracts say which module may know which."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.process
def test_settings_are_read_without_what_only_models_need():
    """Noise that settings name is defined with its mathematics, but SciPy and numba take seconds to import."""
    program = "import sys, streammoe.configuration, streammoe.options; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True, text=True)
    assert not set(done.stdout.split()) & {"scipy", "numba", "river"}


@pytest.mark.process
@pytest.mark.parametrize("program", ["import streammoe", "from streammoe.__main__ import main; main()"])
def test_nothing_large_is_imported_before_a_model_or_a_command_needs_it(program):
    program = f"import atexit, sys; atexit.register(lambda: print(*sys.modules)); {program}"
    done = subprocess.run(
        [sys.executable, "-c", program, "--help"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    assert not set(done.stdout.split()) & {"numpy", "scipy", "numba", "pandas", "pydantic", "river"}


@pytest.mark.process
def test_the_reader_takes_no_module_from_the_folder_that_it_runs_in(tmp_path):
    for name in ("streammoe_connectors", "json", "streammoe"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("from pathlib import Path; Path('executed').touch()")
    script = (
        "from streammoe_connectors.kafka.process import Close, ReaderProcess; "
        "process = ReaderProcess(Close()); process._process.wait(60)"
    )
    subprocess.run([sys.executable, "-P", "-c", script], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    assert not (tmp_path / "executed").exists()
