"""What the Dockerfile says of health; scripts/check_image.py rehearses it as a whole."""

import json
import os
import subprocess
import sys

import pytest
import trustme

from scripts.check_image import REPOSITORY, read_dockerfile
from streammoe.daemon.health import Health
from streammoe.daemon.server import MetricsServer
from streammoe.settings import MetricsSettings

[HEALTH] = [each.rest for each in read_dockerfile(REPOSITORY / "Dockerfile") if each.name == "HEALTHCHECK"]
_, *COMMAND = json.loads(HEALTH.partition("CMD ")[2])


@pytest.mark.parametrize("encrypted", [False, True])
def test_health_is_asked_at_the_port_and_by_the_protocol_that_variables_set(encrypted, tmp_path):
    tls = {}
    if encrypted:
        made = trustme.CA().issue_cert("streammoe.example")
        made.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
        made.private_key_pem.write_to_path(tmp_path / "key.pem")
        tls = {"tls_certfile": str(tmp_path / "cert.pem"), "tls_keyfile": str(tmp_path / "key.pem")}
    health = Health()
    server = MetricsServer(MetricsSettings(port=0, **tls), health)
    variables = {f"STREAMMOE_METRICS__{name.upper()}": value for name, value in tls.items()}
    variables["STREAMMOE_METRICS__PORT"] = server.url.split("/")[2].rpartition(":")[2]

    def asked():
        asking = [sys.executable, *COMMAND]
        return subprocess.run(asking, env={**os.environ, **variables}, capture_output=True, check=False).returncode

    try:
        assert asked() == 0
        health.patience = -1.0
        assert asked() == 1
    finally:
        server.close()
