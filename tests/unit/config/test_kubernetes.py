"""config/kubernetes, as far as it can be checked without a cluster: none was ever run by these tests."""

import re
import signal
import subprocess
import time
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from streammoe.commands import main
from streammoe.configuration import load_settings

pytestmark = pytest.mark.usefixtures("logging_as_before")
ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "config" / "kubernetes"
OBJECTS = [found for path in sorted(FOLDER.glob("*.yaml")) for found in yaml.safe_load_all(path.read_text())]
OLDEST = "1.31"
"""The version of Kubernetes from which on everything in the files is known and on by default."""
NEWEST = kubernetes_validate.latest_version()


def one(kind, name="streammoe"):
    [found] = [each for each in OBJECTS if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


DAEMONS, WATCHER = one("StatefulSet"), one("Deployment", "streammoe-watcher")
N = DAEMONS["spec"]["replicas"]
CONFIG = one("ConfigMap")["data"]["config.toml"]


def pod(workload):
    return workload["spec"]["template"]["spec"]


def containers(workload):
    return [*pod(workload)["initContainers"], *pod(workload)["containers"]]


def container(workload, name):
    [found] = [each for each in containers(workload) if each["name"] == name]
    return found


def expanded(text, variables):
    """As Kubernetes does: what it does not know stays as it is."""
    return re.sub(r"\$\(([^)]*)\)", lambda found: variables.get(found[1], found[0]), text)


def environment(each, index):
    """The variables of a container in the pod of this index."""
    fields = {
        "metadata.name": f"{DAEMONS['metadata']['name']}-{index}",
        "metadata.labels['apps.kubernetes.io/pod-index']": str(index),
    }
    found = {}
    for entry in each.get("env", ()):
        value = entry.get("value")
        found[entry["name"]] = (
            fields[entry["valueFrom"]["fieldRef"]["fieldPath"]] if value is None else expanded(value, found)
        )
    return found


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return path


def settings_of(index, config):
    return load_settings(config, environment=environment(container(DAEMONS, "streammoe"), index))


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_is_what_kubernetes_takes_and_has_no_field_that_it_would_ignore(version):
    for each in OBJECTS:
        kubernetes_validate.validate(each, version, strict=True)


def test_the_settings_are_valid_and_every_partition_has_one_daemon(config):
    daemon = container(DAEMONS, "streammoe")
    for index in range(N):
        checked = CliRunner().invoke(main, ["check-config", str(config)], env=environment(daemon, index))
        assert checked.exit_code == 0, checked.output
    found = [settings_of(index, config) for index in range(N)]
    assert [each.source.shard for each in found] == [f"{index}/{N}" for index in range(N)]
    assert len({each.checkpoint.dir for each in found}) == N
    assert {each.model.reservoir for each in found} == {2000}


def test_the_watcher_reads_the_copy_of_every_shard(config):
    command, *arguments = container(WATCHER, "watcher")["args"]
    places = [argument for argument in arguments if not argument.startswith("--")]
    copies = [environment(container(DAEMONS, "copies"), index) for index in range(N)]
    assert [each["TO"] for each in copies] == places
    [state] = [mount for mount in container(DAEMONS, "copies")["volumeMounts"] if mount["name"] == "state"]
    assert state["readOnly"]
    for index, each in enumerate(copies):
        assert each["FROM"] == f"{state['mountPath']}/{settings_of(index, config).checkpoint.dir}"
    assert main.get_command(None, command).make_context(command, list(arguments)).params["watch"]
    assert f"--out={settings_of(0, config).global_.path}" in arguments


def test_copies_are_those_of_the_newest_checkpoint(tmp_path):
    """A pass of the loop in a shell, ended by SIGTERM as Kubernetes ends it."""
    here, there = tmp_path / "state" / "streammoe-0", tmp_path / "shared" / "streammoe-0"
    programs, done = tmp_path / "bin", tmp_path / "done"
    programs.mkdir()
    (programs / "sleep").write_text(f"#!/bin/sh\ntouch '{done}'\nexec /bin/sleep 1\n")
    (programs / "sleep").chmod(0o700)

    def copied(*names):
        script = container(DAEMONS, "copies")
        path = f"{programs}:/usr/bin:/bin"
        variables = {**environment(script, 0), "FROM": str(here), "TO": str(there), "PATH": path}
        command = [*script["command"], *(expanded(each, variables) for each in script["args"])]
        done.unlink(missing_ok=True)
        running = subprocess.Popen(command, env=variables, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 20.0
        while not done.exists() and time.monotonic() < until:
            time.sleep(0.01)
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=20) == 0
        assert sorted(path.name for path in there.iterdir()) == sorted(names)
        return [(there / name).read_text() for name in sorted(names)]

    def name(generation):
        return f"checkpoint-{generation:012d}.safetensors"

    assert copied() == []  # nothing has been saved yet
    here.mkdir(parents=True)
    (here / "lock").write_text("1")
    for generation in (9, 10):
        (here / name(generation)).write_text(f"{generation}")
    assert copied(name(10)) == ["10"]
    (here / name(11)).write_text("11")
    assert copied(name(10), name(11)) == ["10", "11"]
    (here / name(10)).unlink()
    assert copied(name(11)) == ["11"]
    (here / name(11)).rename(here / "set-aside")
    assert copied(name(9)) == ["9"]  # it went back
    (here / name(10)).write_text("another 10")
    assert copied(name(9), name(10)) == ["9", "another 10"]
    (here / name(10)).write_text("a third 10")
    assert copied(name(9), name(10)) == ["9", "a third 10"]
