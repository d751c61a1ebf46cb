"""An installation without the extra `kafka`: files and all else work, and what needs the package says so."""

import subprocess
import sys

import pytest

SERVERS = 'bootstrap_servers = "127.0.0.1:1"'
FILE = 'source = { kind = "file", path = "data.csv" }'
KAFKA = f'source = {{ kind = "kafka", group = "g", topics = ["t"], format = "jsonl", {SERVERS} }}'
COMMON = 'schema.target = "y"\nmodel = { warmup = 50 }\nmetrics.enabled = false\n'
WITHOUT = "import sys; sys.modules['kafka'] = None; from streammoe.commands import main; main()"


def streammoe(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture
def here(tmp_path):
    rows = "".join(f"{i % 7},{i % 5}\n" for i in range(200))
    (tmp_path / "data.csv").write_text(f"a,y\n{rows}")
    return tmp_path


def test_files_are_learned(here):
    (here / "config.toml").write_text(f"{FILE}\n{COMMON}")
    done = streammoe(here, "run", "config.toml")
    assert done.returncode == 0, done.stderr
    assert list(here.glob("**/checkpoint-*.safetensors"))


@pytest.mark.parametrize(
    "config",
    [
        KAFKA,
        f'{FILE}\npredictions = {{ kind = "kafka", topic = "t", {SERVERS} }}',
        f'{FILE}\ndead_letters = {{ kind = "kafka", topic = "t", {SERVERS} }}',
        None,
    ],
    ids=["source", "predictions", "dead letters", "produce"],
)
def test_what_needs_the_package_says_how_to_get_it(here, config):
    if config is None:
        done = streammoe(here, "produce", "data.csv", "--topic", "t", "--bootstrap-servers", "127.0.0.1:1")
    else:
        (here / "config.toml").write_text(f"{COMMON}{config}\n")
        done = streammoe(here, "run", "config.toml")
    assert done.returncode == 2
    assert "kafka-python" in done.stderr
