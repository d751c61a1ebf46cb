"""An installation without the extra `kafka`: files and all else work, and what needs the package says so."""

import sys

import pytest
from click.testing import CliRunner

from streammoe.commands import main
from streammoe.configuration import connectors

SERVERS = 'bootstrap_servers = "127.0.0.1:1"'
FILE = 'source = { kind = "file", path = "data.csv" }'
CONFIGS = {
    "files": FILE,
    "source": f'source = {{ kind = "kafka", group = "g", topics = ["t"], format = "jsonl", {SERVERS} }}',
    "librdkafka": f'source = {{ kind = "kafka", client = "librdkafka", group = "g", topics = ["t"], {SERVERS} }}',
    "predictions": f'{FILE}\npredictions = {{ kind = "kafka", topic = "t", {SERVERS} }}',
}


PACKAGES = ("kafka", "confluent_kafka")


def take_out():
    """Forget the modules of clients, and of the connectors, which are to be imported without them."""
    names = [name for name in sys.modules if name.partition(".")[0] in {*PACKAGES, "streammoe_connectors"}]
    return {name: sys.modules.pop(name) for name in names}


@pytest.fixture
def without_kafka():
    taken = take_out()
    connectors.cache_clear()
    sys.modules.update(dict.fromkeys(PACKAGES))
    yield
    take_out()
    connectors.cache_clear()
    sys.modules.update(taken)


@pytest.mark.usefixtures("logging_as_before", "without_kafka")
@pytest.mark.parametrize("what", CONFIGS)
def test_files_are_learned_and_what_needs_the_package_says_how_to_get_it(tmp_path, monkeypatch, what):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text("a,y\n" + "".join(f"{i % 7},{i % 5}\n" for i in range(200)))
    (tmp_path / "config.toml").write_text(
        f'schema.target = "y"\nmodel = {{ warmup = 50 }}\nmetrics.enabled = false\n{CONFIGS.get(what)}\n'
    )
    result = CliRunner().invoke(main, ["run", "config.toml"])
    if what == "files":
        assert result.exit_code == 0, result.output
        assert list(tmp_path.glob("**/checkpoint-*.safetensors"))
    else:
        assert result.exit_code == 2, result.output
        assert ("confluent-kafka" if what == "librdkafka" else "kafka-python") in result.output
