"""Secrets in settings."""

import pytest
from pydantic import BaseModel, ValidationError

from streammoe.errors import ConfigError
from streammoe.secrets import Secret, revealed


class Settings(BaseModel):
    password: Secret


def test_a_secret_is_a_text_or_in_a_file_or_the_environment_and_shown_nowhere(tmp_path, monkeypatch):
    (tmp_path / "secret").write_text("hunter2 ü \r\n")
    monkeypatch.setenv("SECRET", "hunter2 ü ")
    for given in ("hunter2 ü ", {"file": str(tmp_path / "secret")}, {"env": "SECRET"}):
        settings = Settings(password=given)
        assert settings.password.read("password") == "hunter2 ü "
        assert "hunter" not in f"{settings!r}{settings}{settings.model_dump()}{settings.model_dump_json()}"
        assert revealed(settings, ["password"]) == {"password": given}


def test_what_is_no_secret_or_missing_is_an_error(tmp_path, monkeypatch):
    for wrong in ({"file": "a", "env": "B"}, {"file": ""}, {"text": "hunter2"}, {}, 2_000_002, None):
        with pytest.raises(ValidationError):
            Settings(password=wrong)
    monkeypatch.delenv("SECRET", raising=False)
    (tmp_path / "secret").write_bytes(b"\xff")
    (tmp_path / "empty").write_text("\n")
    for missing in (
        {"file": str(tmp_path / "empty")},
        {"env": "SECRET"},
        {"file": str(tmp_path / "none")},
        {"file": str(tmp_path / "secret")},
    ):
        with pytest.raises(ConfigError, match=r"metrics\.password"):
            Settings(password=missing).password.read("metrics.password")
