"""compose.yaml, as far as it can be held without Docker: it was never run by these tests."""

import json
import re
from pathlib import Path

import yaml

from streammoe.configuration import load_settings
from streammoe.testing.kafka.broker import DEFAULTS, KAFKA

ROOT = Path(__file__).parents[3]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]


def test_images_have_a_version_and_what_they_need_exists():
    assert COMPOSE.keys() == {"services", "volumes"}
    for service in SERVICES.values():
        assert ("image" in service) != ("build" in service)
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service.get("image", "own:1.0.0"))
        waits = service.get("depends_on", {})
        assert set(waits) <= SERVICES.keys()
        for other, how in waits.items() if isinstance(waits, dict) else ():
            assert how.get("condition") != "service_healthy" or "healthcheck" in SERVICES[other]
        for volume in service.get("volumes", ()):
            source, target, *mode = volume.split(":")
            assert target.startswith("/")
            if source.startswith("./"):
                assert (ROOT / source).exists()
                assert mode == ["ro"]
            else:
                assert source in COMPOSE["volumes"]


def test_ports_are_open_to_this_machine_only_and_differ():
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert all(re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port) for port in ports)
    assert len(set(ports)) == len(ports)


def test_the_daemon_reads_the_topic_that_is_made_from_the_broker_that_is_there():
    daemon = SERVICES["streammoe"]
    [config] = [volume.split(":") for volume in daemon["volumes"] if volume.startswith("./")]
    assert config[1] in (ROOT / "Dockerfile").read_text()
    settings = load_settings(ROOT / config[0], environment=daemon["environment"])
    [source] = settings.sources
    made = SERVICES["topic"]["command"]
    assert list(source.topics) == [made[made.index("--topic") + 1]]
    [server] = source.bootstrap_servers
    assert f"INSIDE://{server}," in SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert settings.metrics.host == "0.0.0.0"
    assert daemon["ports"] == [f"127.0.0.1:{settings.metrics.port}:{settings.metrics.port}"]
    assert not Path(settings.checkpoint.dir).is_absolute()  # below the volume, which is where the image works


def test_what_was_given_to_prometheus_and_grafana_fits_together():
    scrape = yaml.safe_load((ROOT / "config/prometheus/prometheus.yml").read_text())["scrape_configs"][0]
    assert scrape["static_configs"][0]["targets"] == ["streammoe:9464"]
    provisioning = ROOT / "config/grafana/provisioning"
    [source] = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    [provider] = yaml.safe_load((provisioning / "dashboards/streammoe.yml").read_text())["providers"]
    dashboard = SERVICES["grafana"]["volumes"][1].split(":")
    assert Path(dashboard[1]).parent == Path(provider["options"]["path"])


def test_it_is_the_kafka_that_tests_run_against():
    assert SERVICES["kafka"]["image"] == SERVICES["topic"]["image"] == f"apache/kafka:{KAFKA}"
    image = SERVICES["kafka"]["environment"]
    for name in ("auto.create.topics.enable", "offsets.topic.replication.factor", "process.roles"):
        assert image["KAFKA_" + name.upper().replace(".", "_")] == DEFAULTS[name]


def test_the_daemon_may_do_no_more_than_it_must_and_writes_to_volumes_of_the_image():
    daemon = SERVICES["streammoe"]
    assert daemon["read_only"] is True
    assert daemon["cap_drop"] == ["ALL"]
    assert daemon["security_opt"] == ["no-new-privileges:true"]
    assert [mount.split(":")[0] for mount in daemon["tmpfs"]] == ["/tmp"]
    assert "user" not in daemon  # that of the image, which is not root
    assert not any(service.get("privileged") for service in SERVICES.values())
    [line] = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("VOLUME ")]
    volumes = set(json.loads(line.removeprefix("VOLUME ")))
    written = {volume.split(":")[1] for volume in daemon["volumes"] if not volume.endswith(":ro")}
    assert written | {"/opt/streammoe/kernels"} <= volumes
