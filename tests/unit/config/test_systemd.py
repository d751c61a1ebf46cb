"""config/systemd, by systemd's own tool; no unit was ever started by these tests."""

import shlex
import sys
from pathlib import Path

from streammoe import commands, errors
from tests.unit.config.programs import run

UNIT = Path(__file__).parents[3] / "config" / "systemd" / "streammoe@.service"
LINES = [line.partition("=") for line in UNIT.read_text().splitlines() if "=" in line and not line.startswith("#")]
SETTINGS = {name: value for name, _, value in LINES}


def test_systemd_takes_the_unit_without_a_warning(tmp_path):
    program, *arguments = shlex.split(SETTINGS["ExecStart"])
    unit = tmp_path / "streammoe@polls.service"
    unit.write_text(UNIT.read_text().replace(program, sys.executable))
    assert run("systemd-analyze", "verify", "--man=no", str(unit)) == ""
    assert arguments[1] == "/etc/streammoe/%i.toml"
    assert commands.main.get_command(None, arguments[0])


def test_restarts_are_for_what_they_can_help_against():
    codes = {each.exit_code for each in vars(errors).values() if hasattr(each, "exit_code")}
    assert set(map(int, SETTINGS["RestartPreventExitStatus"].split())) == codes - {3, 6, 70}
    assert set(map(int, SETTINGS["SuccessExitStatus"].split())) == {130, 143}
    assert SETTINGS["Restart"] == "on-failure"


def test_numba_may_execute_what_it_has_compiled():
    assert "MemoryDenyWriteExecute" not in SETTINGS
