"""compose.yaml, as far as it can be checked without Docker: it was never run by these tests."""

import re
import shlex
from pathlib import Path

import yaml

from streammoe import commands
from streammoe.commands.demo import FILE
from streammoe.configuration import load_settings

ROOT = Path(__file__).parents[3]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]


def test_the_daemon_reads_the_topic_that_is_made_and_everything_finds_its_address():
    daemon = SERVICES["streammoe"]
    [config] = [volume.split(":") for volume in daemon["volumes"] if volume.startswith("./")]
    assert config[1] in (ROOT / "Dockerfile").read_text()
    settings = load_settings(ROOT / config[0], environment=daemon["environment"])
    source = settings.source
    made = SERVICES["topic"]["command"]
    assert list(source.topics) == [made[made.index("--topic") + 1]]
    [server] = source.bootstrap_servers
    assert f"INSIDE://{server}," in SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert settings.metrics.host == "0.0.0.0"
    assert daemon["ports"] == [f"127.0.0.1:{settings.metrics.port}:{settings.metrics.port}"]
    assert not Path(settings.checkpoint.dir).is_absolute()  # below the volume, which is where the image works
    prometheus = yaml.safe_load((ROOT / "config/prometheus/prometheus.yml").read_text())
    assert prometheus["scrape_configs"][0]["static_configs"][0]["targets"] == [f"streammoe:{settings.metrics.port}"]
    [alertmanager] = prometheus["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    name, port = alertmanager.split(":")
    assert f"127.0.0.1:{port}:{port}" in SERVICES[name]["ports"]


def test_the_commands_in_its_head_fill_the_topic_with_what_the_container_may_write():
    head = (ROOT / "compose.yaml").read_text().partition("\nservices:")[0]
    name, daemon = "streammoe", SERVICES["streammoe"]
    demo, send = (shlex.split(words) for words in re.findall(rf"docker compose exec (?:-T )?{name} (.*)", head))
    folder = commands.main.get_command(None, "demo").make_context("demo", demo[2:]).params["folder"]
    assert daemon["tmpfs"][0].startswith(f"{folder.parent}:")
    _, _, file, topic, servers, _, script = send
    assert file == str(folder / FILE)
    assert servers == daemon["environment"]["STREAMMOE_SOURCE__BOOTSTRAP_SERVERS"]
    assert topic in SERVICES["topic"]["command"]
    assert (ROOT / script).exists()


def test_services_may_do_no_more_than_they_must():
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert all(re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port) for port in ports)
    assert len(set(ports)) == len(ports)
    daemon = SERVICES["streammoe"]
    assert (daemon["read_only"], daemon["cap_drop"]) == (True, ["ALL"])
    assert daemon["security_opt"] == ["no-new-privileges:true"]
    assert "user" not in daemon  # that of the image, which is not root
    for service in SERVICES.values():
        assert not service.get("privileged")
        assert service["cpus"] <= 2
        assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}
        assert "build" in service or re.fullmatch(r"[\w/]+:v?[\d.]+@sha256:[0-9a-f]{64}", service["image"])
