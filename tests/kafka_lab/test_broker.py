"""Start and stop of brokers, without a real one: every integration test with Kafka relies on it."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from scripts import kafka_broker
from tests.kafka_lab.lab import wait_until

ROOT = Path(__file__).parents[2]


def test_a_process_with_the_settings_of_the_folder_is_ours_and_no_other_that_has_its_pid(tmp_path):
    for stranger in (os.getpid(), 1, 2**22 + 1):
        (tmp_path / "broker.pid").write_text(f"{stranger}\n")
        assert kafka_broker.running(tmp_path) is None
    sleep = [sys.executable, "-c", "input()", "kafka.Kafka", str(tmp_path / "server.properties")]
    with subprocess.Popen(sleep, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        (tmp_path / "broker.pid").write_text(f"{process.pid}\n")
        wait_until(lambda: kafka_broker.running(tmp_path) == process.pid, "the words of the process show")
        process.kill()
        process.wait()
    assert kafka_broker.running(tmp_path) is None


def test_make_kafka_up_installs_the_extra_and_no_tool_of_development(tmp_path):
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    plan = subprocess.run(["make", "-n", "kafka-up"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"-e (\S+)", plan) == [".", '".[kafka]"']
    # Installed with nothing else, it would end at an import of anything else.
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    names = {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in optional}
    program = "import sys; from scripts import kafka_broker; print(*{name.partition('.')[0] for name in sys.modules})"
    command = [sys.executable, "-c", program]
    loaded = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert {"streammoe"} == names & {*loaded}
