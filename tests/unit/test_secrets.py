"""Secrets in settings."""

from pydantic import BaseModel

from streammoe.secrets import Secret


class Settings(BaseModel):
    password: Secret


def test_a_secret_is_a_text_or_in_a_file_or_the_environment_and_shown_nowhere(tmp_path, monkeypatch):
    (tmp_path / "secret").write_text("hunter2 ü \r\n")
    monkeypatch.setenv("SECRET", "hunter2 ü ")
    for given in ("hunter2 ü ", {"file": str(tmp_path / "secret")}, {"env": "SECRET"}):
        settings = Settings(password=given)
        assert settings.password.read("password") == "hunter2 ü "
        assert "hunter" not in f"{settings!r}{settings}{settings.model_dump()}{settings.model_dump_json()}"
