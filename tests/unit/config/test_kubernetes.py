"""config/kubernetes as kustomize builds it, without a cluster: none was ever run by these tests."""

import functools
import re
import shutil
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
from tests.unit.config.programs import run

pytestmark = pytest.mark.usefixtures("logging_as_before")
ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "config" / "kubernetes"
OLDEST = re.search(r"Kubernetes (\d+\.\d+) or newer", (ROOT / "docs" / "install.md").read_text())[1]
"""The version from which on everything in the files is known and on by default."""
NEWEST = kubernetes_validate.latest_version()


@functools.cache
def built(folder=FOLDER):
    return list(yaml.safe_load_all(run("kubectl", "kustomize", str(folder))))


def one(kind, name="streammoe", folder=FOLDER):
    [found] = [each for each in built(folder) if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


@pytest.fixture
def daemons():
    return one("StatefulSet")


@pytest.fixture
def watcher():
    return one("Deployment", "streammoe-watcher")


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
        "metadata.name": f"streammoe-{index}",
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
def config(daemons, tmp_path):
    """The file that daemons get."""
    [volume] = [each for each in pod(daemons)["volumes"] if each["name"] == "config"]
    path = tmp_path / "config.toml"
    path.write_text(one("ConfigMap", volume["configMap"]["name"])["data"]["config.toml"])
    return path


def settings_of(index, daemons, config):
    return load_settings(config, environment=environment(container(daemons, "streammoe"), index))


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_is_what_kubernetes_takes_and_has_no_field_that_it_would_ignore(version):
    for each in built():
        kubernetes_validate.validate(each, version, strict=True)


def test_one_number_of_shards_is_that_of_daemons_of_partitions_and_of_the_watcher(tmp_path, config):
    shutil.copytree(FOLDER, tmp_path / "kubernetes")
    kustomization = tmp_path / "kubernetes" / "kustomization.yaml"
    kustomization.write_text(kustomization.read_text().replace("count: 4", "count: 3"))
    daemons = one("StatefulSet", folder=kustomization.parent)
    watcher = one("Deployment", "streammoe-watcher", folder=kustomization.parent)
    assert daemons["spec"]["replicas"] == 3
    daemon = container(daemons, "streammoe")
    for index in range(3):
        checked = CliRunner().invoke(main, ["check-config", str(config)], env=environment(daemon, index))
        assert checked.exit_code == 0, checked.output
    found = [settings_of(index, daemons, config) for index in range(3)]
    assert [each.source.shard for each in found] == ["0/3", "1/3", "2/3"]
    assert {each.model.reservoir for each in found} == {2000}

    # The watcher reads the copy of each.
    copies = [environment(container(daemons, "copies"), index) for index in range(3)]
    [state] = [mount for mount in container(daemons, "copies")["volumeMounts"] if mount["name"] == "state"]
    assert state["readOnly"]
    assert [each["FROM"] for each in copies] == [f"{state['mountPath']}/{each.checkpoint.dir}" for each in found]
    each = container(watcher, "watcher")
    (tmp_path / "streammoe").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "streammoe").chmod(0o700)
    variables = {**environment(each, 0), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    script = [expanded(part, variables) for part in each["args"]]
    printed = subprocess.run([*each["command"], *script], env=variables, capture_output=True, text=True, check=True)
    command, *arguments = printed.stdout.split()
    assert [argument for argument in arguments if not argument.startswith("--")] == [each["TO"] for each in copies]
    assert main.get_command(None, command).make_context(command, list(arguments)).params["watch"]
    assert f"--out={found[0].global_.path}" in arguments


def test_the_documented_folder_builds_on_the_base(tmp_path):
    document = (ROOT / "docs" / "install.md").read_text()
    (tmp_path / "kustomization.yaml").write_text(document.split("```yaml\n")[1].split("```")[0])
    (tmp_path / "config.toml").write_text("mine")
    shutil.copytree(FOLDER, tmp_path / "streammoe" / "config" / "kubernetes")
    daemons = one("StatefulSet", folder=tmp_path)
    assert {each["image"].partition(":")[0] for each in containers(daemons)} == {"registry.example/streammoe"}
    [volume] = [each for each in pod(daemons)["volumes"] if each["name"] == "config"]
    assert one("ConfigMap", volume["configMap"]["name"], tmp_path)["data"] == {"config.toml": "mine"}
    assert {each["metadata"]["namespace"] for each in built(tmp_path)} == {"streammoe"}
    assert one("PodMonitor", folder=tmp_path)


def test_only_prometheus_reaches_pods_and_daemons_reach_their_brokers(daemons, watcher, config):
    default, to_brokers = one("NetworkPolicy")["spec"], one("NetworkPolicy", "streammoe-daemons")["spec"]
    monitor = one("PodMonitor", folder=FOLDER / "monitoring")["spec"]
    rules = one("PrometheusRule", folder=FOLDER / "monitoring")["spec"]
    assert rules == yaml.safe_load((ROOT / "config" / "prometheus" / "alerts.yml").read_text())
    assert "egress" not in default
    [endpoint] = monitor["podMetricsEndpoints"]
    assert default["ingress"][0]["ports"] == [{"port": endpoint["port"]}]
    for workload in (daemons, watcher):
        labels = workload["spec"]["template"]["metadata"]["labels"]
        for selector in (default["podSelector"], monitor["selector"], workload["spec"]["selector"]):
            assert selector["matchLabels"].items() <= labels.items()
        ports = [port["name"] for each in pod(workload)["containers"] for port in each.get("ports", ())]
        assert ports == [endpoint["port"]]
    assert to_brokers["podSelector"] == daemons["spec"]["selector"]
    [brokers] = settings_of(0, daemons, config).source.bootstrap_servers
    assert int(brokers.rpartition(":")[2]) in [port["port"] for port in to_brokers["egress"][0]["ports"]]


def test_copies_are_those_of_the_newest_checkpoint(daemons, tmp_path):
    """A pass of the loop in a shell, ended by SIGTERM as Kubernetes ends it."""
    here, there = tmp_path / "state" / "streammoe-0", tmp_path / "shared" / "streammoe-0"
    programs, done = tmp_path / "bin", tmp_path / "done"
    programs.mkdir()
    (programs / "sleep").write_text(f"#!/bin/sh\ntouch '{done}'\nexec /bin/sleep 1\n")
    (programs / "sleep").chmod(0o700)

    def copied(*names):
        script = container(daemons, "copies")
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
