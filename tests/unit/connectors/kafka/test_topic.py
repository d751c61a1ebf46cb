"""Settings of the client; what needs a broker is among the integration tests."""

import pytest

from streammoe.errors import ConfigError
from streammoe_connectors.kafka.topic import Topic

SECRET = "geheim"


def read(tmp_path, text):
    path = tmp_path / "client.toml"
    path.write_text(text)
    return Topic.settings(path)


def test_settings_are_those_of_the_file(tmp_path):
    text = f'security_protocol = "SASL_SSL"\nsasl_plain_password = "{SECRET}"\nlinger_ms = 7'
    assert read(tmp_path, text) == {"security_protocol": "SASL_SSL", "sasl_plain_password": SECRET, "linger_ms": 7}
    assert Topic.settings(None) == {}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (f'sasl_password = "{SECRET}"', "sasl_password is no setting"),
        (f'acks = "{SECRET}"', "acks is no setting"),
        (f"sasl_plain_password = {SECRET}", "is not TOML"),
        (f'security_protocol = "{SECRET}"', "must be one of PLAINTEXT, SSL"),
        (f'security_protocol = ["{SECRET}"]', "must be one of PLAINTEXT, SSL"),
    ],
)
def test_mistakes_are_told_without_their_values(tmp_path, text, rule):
    with pytest.raises(ConfigError, match=rule) as caught:
        read(tmp_path, text)
    assert SECRET not in str(caught.value)


def test_a_file_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing\.toml: cannot be read"):
        Topic.settings(tmp_path / "nothing.toml")
