import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from streammoe.daemon.health import Health
from streammoe.daemon.serving import MetricsServer
from streammoe.errors import ConfigError
from streammoe.settings import Metrics


def serving(health, *, port=0, **settings):
    return MetricsServer(Metrics(port=port, **settings), health)


@pytest.fixture
def registry():
    registry = CollectorRegistry()
    Gauge("answer", "Of everything", registry=registry).set(42)
    return registry


def test_the_registry_is_served_at_the_url(registry):
    server = serving(Health(60), port=0)
    server.show(registry)
    try:
        assert server.url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(server.url, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            (family,) = text_string_to_metric_families(answer.read().decode())
        assert (family.name, family.samples[0].value) == ("answer", 42)
    finally:
        server.close()


def test_a_port_in_use_is_the_settings_fault():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"127\.0\.0\.1 with metrics\.port {port}: cannot be bound .*; stop what"
        ):
            serving(Health(60), port=port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])  # an address for documentation only
def test_a_host_that_is_not_here_is_the_settings_fault(host):
    with pytest.raises(ConfigError, match=rf"metrics\.host {host} with metrics\.port 0: cannot be bound"):
        serving(Health(60), host=host)


def test_closing_frees_the_port():
    first = serving(Health(60), port=0)
    port = int(first.url.split(":")[2].split("/")[0])
    first.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(first.url, timeout=10)
    again = serving(Health(60), port=port)
    assert again.url == first.url
    again.close()


def test_the_url_of_an_ipv6_address_has_brackets():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    server = serving(Health(60), host="::1")
    try:
        assert server.url.startswith("http://[::1]:")
    finally:
        server.close()


# --- probes ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def health():
    return Health(60)


@pytest.fixture
def ask(health):
    """The status and the text of a path."""
    server = serving(health, port=0)

    def ask(path):
        try:
            with urllib.request.urlopen(server.url.replace("/metrics", path), timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    yield ask
    server.close()


def test_metrics_are_not_served_before_they_are_restored(ask):
    assert ask("/metrics") == (503, "starting: the counters are not restored yet\n")


def test_it_is_ready_once_it_says_so(ask, health):
    assert ask("/readyz")[0] == 503
    health.ready = True
    assert ask("/readyz") == (200, "ready\n")


def test_it_is_alive_while_the_loop_turns_ready_or_not(ask, health):
    assert ask("/healthz") == (200, "alive\n")
    health.patience = -1.0
    status, text = ask("/healthz")
    assert (status, text) == (503, "the learning loop has not turned for 0 s\n")
    health.patience = 60.0
    health.beat()
    assert ask("/healthz")[0] == 200


def test_other_paths_are_told_which_there_are(ask):
    assert ask("/status") == (404, "there are /metrics, /healthz and /readyz\n")


def test_it_is_not_ready_while_nothing_can_be_saved(ask, health):
    health.ready = True
    health.unsaved = "the disk is full"
    assert ask("/readyz") == (503, "nothing can be saved: the disk is full\n")
    assert ask("/healthz")[0] == 200
    health.unsaved = ""
    assert ask("/readyz")[0] == 200
