"""What the commands say about themselves and how failures become exit codes; tests/process runs them for real."""

import errno
import json
import logging
import re
import shlex
import sys
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

import streammoe
from streammoe import batch
from streammoe.commands import main
from streammoe.commands.demo import Report
from streammoe.console import LEVELS, JsonLines, Lines, exit_codes, progress_bar, set_up_logging
from streammoe.errors import CheckpointError, ConfigError, SourceError, StreammoeError, TooManyBadRecords
from streammoe.estimators import MoERegressor
from streammoe.persistence import encode

pytestmark = pytest.mark.usefixtures("logging_as_before")

COMMANDS = {name: main.get_command(None, name) for name in main.list_commands(None)}


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture
def config(tmp_path):
    (tmp_path / "data.csv").write_text("a,b,y\n1,2,3\n2,1,3\n")
    path = tmp_path / "config.toml"
    path.write_text("""
        source = { kind = "file", path = "data.csv" }
        schema.target = "y"
        metrics.enabled = false
    """)
    return path


# --- help -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_the_help_lists_every_command_with_a_sentence(call, option):
    done = call(option)
    assert done.exit_code == 0
    assert {"run", "check-config", "inspect", "demo", "evaluate", "fit", "dead-letters", "rollback"} <= set(COMMANDS)
    for name, command in COMMANDS.items():
        assert f"\n  {name} " in done.stdout
        assert command.get_short_help_str()


def test_every_commands_help_has_an_example_and_both_log_options(call):
    for name in COMMANDS:
        done = call(name, "--help")
        assert done.exit_code == 0
        assert re.search(rf"^ +Example:\n +streammoe {name}\b", done.stdout, re.MULTILINE)
        assert "--log-level [debug|info|warning|error]" in done.stdout
        assert "--log-format [text|json]" in done.stdout
    assert ", ".join(batch.METHODS) in call("fit", "--help").stdout.replace("\n", " ").replace("  ", " ")


def test_examples_use_only_what_there_is():
    for name in (None, *COMMANDS):
        text = (main if name is None else COMMANDS[name]).help
        lines = [line.strip() for line in text.split("Example:")[1].splitlines() if line.strip()]
        assert lines
        for line in lines:
            program, command, *arguments = shlex.split(line)
            assert program == "streammoe"
            assert name in {None, command}
            COMMANDS[command].make_context(command, arguments)  # raises what a user would be told


def test_the_version(call):
    assert streammoe.__version__ in call("--version").stdout


def test_a_wrong_command_line_is_told_on_stderr(call):
    for wrong in (["run"], ["nonsense"], ["run", "c.toml", "--log-level", "loud"], ["fit", "a.csv"], ["evaluate"]):
        done = call(*wrong)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "Usage: " in done.stderr


# --- check-config ---------------------------------------------------------------------------------------------------


def test_check_config_opens_nothing(call, config, tmp_path):
    (tmp_path / "data.csv").unlink()
    before = sorted(tmp_path.rglob("*"))
    done = call("check-config", config)
    assert (done.exit_code, done.stdout, done.stderr) == (0, f"{config}: no errors\n", "")
    assert sorted(tmp_path.rglob("*")) == before


def test_check_config_tells_every_error_at_once(call, config):
    config.write_text('[source]\nkind = "file"\n[model]\nn_expert = 3\ndegree = "two"\n[modle]\n')
    done = call("check-config", config, "--set", "metrics.port=70000", "--set", "source.block_bytes=1")
    assert (done.exit_code, done.stdout) == (2, "")
    named = [line.removeprefix("error: ").partition(":")[0] for line in done.stderr.splitlines()]
    wrong = ["model.n_expert", "model.degree", "modle", "schema.target", "source.path", "source.block_bytes"]
    assert sorted(named) == sorted([*wrong, "metrics.port"])


def test_check_config_warns_of_settings_without_effect(call, config):
    done = call("check-config", config, "--set", "model.averaging_rate=0.1", "--set", "model.max_experts=9")
    assert done.exit_code == 0
    assert re.findall(r"WARNING (model\.\w+) = ", done.stderr) == ["model.max_experts", "model.averaging_rate"]


# --- run and inspect ------------------------------------------------------------------------------------------------


def test_run_prints_a_dash_for_what_is_not_known(call, config, tmp_path):
    (tmp_path / "data.csv").write_text("a,b,y\n")
    done = call("run", config, "--log-level", "error")
    assert done.exit_code == 0, done.stderr
    assert done.stderr == ""
    values = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert (values["events"], values["rmse"], values["log_loss"]) == ("0", "-", "-")


def test_flags_stand_over_the_file(call, config, tmp_path):
    done = call("run", config, "--set", "checkpoint.dir=elsewhere", "--summary", "json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["checkpoint"].startswith("elsewhere/")
    assert list((tmp_path / "elsewhere").glob("*.safetensors"))
    assert not list((tmp_path / "state").glob("*.safetensors"))


def test_the_level_of_the_log(call, config):
    for level in LEVELS:
        done = call("run", config, "--log-level", level)
        assert done.exit_code == 0, done.stderr
        assert ("DEBUG checkpoint" in done.stderr) == (level == "debug")


def test_inspect_reads_a_saved_model_too(call, tmp_path):
    model = MoERegressor(2, warmup=10)
    for i in range(5):
        model.learn_one({"a": float(i)}, 1.0)
    model.save(tmp_path / "model.safetensors")
    done = call("inspect", "model.safetensors", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["n"], found["state_digest"], found["features"]) == (5, model.state_digest(), ["a"])
    assert found["warming_up"]


# --- exit codes and logs --------------------------------------------------------------------------------------------


FAILURES = [
    (ConfigError("one", "two"), 2, 2),
    (SourceError("one"), 3, 1),
    (CheckpointError("one"), 4, 1),
    (TooManyBadRecords("one"), 5, 1),
    (StreammoeError("one"), 70, 1),
    (MemoryError(), 70, 1),
    (OSError(errno.EMFILE, "Too many open files"), 70, 1),
    (OSError(errno.ENFILE, "Too many open files in system"), 70, 1),
]
"""What a user can mend, its exit code, and how many lines say it."""


def test_what_a_user_can_mend_is_told_without_traceback(capsys, caplog):
    for error, code, lines in FAILURES:
        with pytest.raises(SystemExit) as left, exit_codes():
            raise error
        assert left.value.code == code, error
        out, err = capsys.readouterr()
        assert (out, err.count("error: "), err.count("\n")) == ("", lines, lines)
    assert caplog.text == ""


def test_anything_else_is_a_bug_with_its_traceback(caplog):
    with pytest.raises(SystemExit) as left, exit_codes():
        raise ZeroDivisionError("just like that")
    assert left.value.code == 70
    assert "ZeroDivisionError: just like that" in caplog.text


def test_a_log_line_is_json_with_the_traceback_inside():
    try:
        raise ZeroDivisionError("ünd so\nweiter")
    except ZeroDivisionError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("streammoe.x", logging.ERROR, "x.py", 1, "said %s", ("it",), info)
    record.created = 0.5
    line = JsonLines().format(record)
    assert "\n" not in line
    assert line.isascii()
    found = json.loads(line)
    assert found.pop("traceback").endswith("weiter")
    assert found == {
        "time": "1970-01-01T00:00:00.500+00:00",
        "level": "error",
        "logger": "streammoe.x",
        "message": "said it",
    }


def test_what_the_client_of_kafka_logs_is_for_debugging(capsys):
    for level in LEVELS:
        set_up_logging(level, "text")
        logging.getLogger("kafka.conn").error("connect failed")
        logging.getLogger("streammoe.kafka").error("no broker answers")
        shown = capsys.readouterr().err
        assert "no broker answers" in shown
        assert ("connect failed" in shown) == (level == "debug")


def test_a_progress_bar_is_for_terminals(capsys, monkeypatch):
    for terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal, raising=False)
        with progress_bar("learning") as follow:
            for progress in ((0, 0), (1, 4), None, (4, 4)):
                follow(progress)
        out, err = capsys.readouterr()
        assert out == ""
        assert ("learning" in err, "100%" in err) == (terminal, terminal)


# --- evaluate -------------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path):
    lines = [f"{i % 7},{i % 5},{i % 7 - i % 5},{'even' if i % 2 else 'odd'}" for i in range(300)]
    (tmp_path / "many.csv").write_text("\n".join(["a,b,y,z", *lines, "x,1,2,odd"]) + "\n")
    return tmp_path


QUIET = ["--n-experts", 2, "--log-level", "error"]
SMALL = [*QUIET, "--warmup", 100]


def test_evaluate_prints_a_table_or_json_and_writes_what_it_is_asked_for(call, data):
    before = {path.name for path in data.iterdir()}
    asked = ["evaluate", "many.csv", "--target", "y", "--ignore", "z", *SMALL]
    done = call(*asked, "--against", "river:LinearRegression")
    assert (done.exit_code, done.stderr) == (0, "")
    for said in ("300 events", "streammoe, 2 experts", "river LinearRegression", "running mean", "wrong_type"):
        assert said in done.stdout
    assert {path.name for path in data.iterdir()} == before
    done = call(*asked, "--plot", "o.png", "--html", "o.html", "--json")
    assert {path.name for path in data.iterdir()} - before == {"o.png", "o.html"}
    found = json.loads(done.stdout)
    assert (found["metric"], found["events"], found["learned"], found["rejected"]) == ("rmse", 301, 300, 1)


OPTIONS = {
    "--degree": 2,
    "--gate-degree": 2,
    "--bound": "paper",
    "--averaging": "none",
    "--seed": 4,
    "--ignore": "z",
    "--categorical": "a",
    "--weight": "b",
    "--set": "model.prior_strength=0.2",
}
MODEL = {"degree": 2, "gate_degree": 2, "bound": "paper", "averaging": "none", "seed": 4, "prior_strength": 0.2}
SCHEMA = {"ignore": ["z"], "categorical": ["a"], "weight": "b"}


@pytest.mark.parametrize(
    ("command", "more", "expected"),
    [
        ("evaluate", {"--schedule": "constant:0.05", "--drift": "page_hinkley"}, {"drift": "page_hinkley"}),
        ("fit", {"--rounds": 2, "--method": "gradient_descent", "--step": 1e-3, "--tolerance": 0}, {}),
    ],
    ids=["evaluate", "fit"],
)
def test_every_option_reaches_its_setting(call, data, command, more, expected):
    words = [word for pair in (OPTIONS | more).items() for word in pair]
    done = call(command, "many.csv", "--target", "y", "--json", *QUIET, *words)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    model = MODEL | expected
    assert {name: found["settings"]["model"][name] for name in model} == model
    assert {name: found["settings"]["schema"][name] for name in SCHEMA} == SCHEMA
    if command == "fit":
        assert (found["method"], found["rounds"], found["learned"]) == ("gradient_descent", 2, 241)
    else:
        assert found["settings"]["model"]["schedule"] == {"kind": "constant", "gamma": 0.05}


# --- fit ------------------------------------------------------------------------------------------------------------

QUIET = ["--n-experts", 2, "--log-level", "error"]


def test_fit_prints_a_table_and_writes_nothing(call, data):
    before = sorted(data.rglob("*"))
    done = call("fit", "many.csv", "--target", "y", "--ignore", "z", "--rounds", 3, *QUIET)
    assert (done.exit_code, done.stderr) == (0, "")
    for said in ("300 rows", "log-loss", "RMSE", "objective", "shares", "wrong_type"):
        assert said in done.stdout
    assert sorted(data.rglob("*")) == before


def test_fit_prints_json_and_leaves_what_it_is_asked_for(call, data):
    before = {path.name for path in data.iterdir()}
    named = ["--out", "m.model", "--trace", "t.csv", "--plot", "t.png"]
    asked = ["--target", "z", "--classify", "--ignore", "y", "--method", "gradient_em", "--rounds", 4, "--tolerance", 0]
    done = call("fit", "many.csv", *asked, "--json", *named, *QUIET)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["events"], found["learned"], found["rejected"]) == (301, 300, 1)
    assert (found["method"], found["start"], found["rounds"], found["converged"]) == ("gradient_em", "warmup", 4, False)
    assert found["refused"][0]["reason"] == "wrong_type"
    assert found["rmse"] is None
    assert 0.0 < found["accuracy"] <= 1.0
    assert {path.name for path in data.iterdir()} - before == {"m.model", "t.csv", "t.png"}
    assert found["state_digest"] == streammoe.load("m.model").state_digest()
    lines = (data / "t.csv").read_text().splitlines()
    assert lines[0] == "start,number,objective,change,gradient,seconds"
    assert [line.split(",")[1] for line in lines[1:]] == ["0", "1", "2", "3", "4"]
    assert lines[1].split(",")[3] == ""
    assert float(lines[-1].split(",")[2]) == found["objective"]
    assert (data / "t.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("command", ["fit", "evaluate"])
def test_of_a_file_that_is_mostly_refused_nothing_is_told(call, tmp_path, command):
    sound, broken = [f"{i},{i % 3}" for i in range(40)], ["?,1"] * 39
    (tmp_path / "half.csv").write_text("\n".join(["a,y", *sound, *broken, "2,x"]))
    named = [command, "half.csv", "--target", "y", "--n-experts", 1]
    named += ["--out", "m.model"] if command == "fit" else ["--html", "o.html"]
    assert call(*named).exit_code == 0
    (tmp_path / named[-1]).unlink()
    (tmp_path / "half.csv").write_text("\n".join(["a,y", *sound, *broken, "2,x", "3,x"]))
    done = call(*named)
    assert (done.exit_code, done.stdout) == (5, "")
    assert not (tmp_path / named[-1]).exists()
    assert call(*named, "--set", "dead_letters.max_ratio=0.6").exit_code == 0


@pytest.mark.parametrize("command", ["fit", "evaluate"])
def test_a_target_of_labels_is_answered_with_the_option_for_it(call, data, command):
    done = call(command, "many.csv", "--target", "z")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "--classify" in done.stderr


def test_fit_takes_model_and_schema_of_a_configuration(call, data, tmp_path):
    (tmp_path / "c.toml").write_text("""
        source = { kind = "stdin", format = "jsonl" }
        schema = { target = "z", ignore = ["y"] }
        model = { kind = "classifier", n_experts = 3, warmup = 50, schedule = { kind = "power", alpha = 0.7 } }
    """)
    asked = ["--config", "c.toml", "--json", "--rounds", 2, "--log-level", "error"]
    done = call("fit", "many.csv", *asked)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)["settings"]
    assert found["schema"]["target"] == "z"
    assert (found["model"]["kind"], found["model"]["n_experts"], found["model"]["warmup"]) == ("classifier", 3, 50)
    assert found["model"]["schedule"]["alpha"] == 0.7
    over = call("fit", "many.csv", *asked, "--n-experts", 2, "--set", "model.seed=9", "--ignore", "a,y")
    assert over.exit_code == 0, over.stderr
    found = json.loads(over.stdout)["settings"]
    assert (found["model"]["n_experts"], found["model"]["seed"], found["model"]["warmup"]) == (2, 9, 50)
    assert found["schema"]["ignore"] == ["a", "y"]


def test_fit_goes_on_from_a_saved_model(call, data):
    asked = ["many.csv", "--target", "y", "--ignore", "z", *QUIET]
    first = call("fit", *asked, "--rounds", 1, "--tolerance", 0, "--out", "m.model", "--json")
    second = call("fit", *asked, "--from-model", "m.model", "--method", "mm", "--json")
    assert second.exit_code == 0, second.stderr
    first, second = json.loads(first.stdout), json.loads(second.stdout)
    assert second["start"] == "model"
    assert second["objective_at_start"] == pytest.approx(first["objective"], abs=1e-2)
    assert second["objective"] >= second["objective_at_start"]
    other = call("fit", *asked, "--from-model", "m.model", "--degree", 2)
    assert other.exit_code == 4


def test_a_fit_that_is_stopped_while_it_reads_ends_without_results(call, data, monkeypatch):
    monkeypatch.setattr(
        "streammoe.daemon.signals.StopFlag.__enter__", lambda flag: setattr(flag, "requested", 1) or flag
    )
    monkeypatch.setattr("streammoe.daemon.signals.StopFlag.__exit__", lambda *_: None)
    done = call("fit", "many.csv", "--target", "y", "--ignore", "z", "--out", "m.model", *QUIET)
    assert (done.exit_code, done.stdout) == (1, "")
    assert not (data / "m.model").exists()


# --- dead-letters ---------------------------------------------------------------------------------------------------


@pytest.fixture
def letters(call, config, tmp_path):
    config.write_text(config.read_text() + "model = { n_experts = 1, warmup = 10 }\n")
    lines = [f"{i % 7},{i % 5},{i}" for i in range(50)]
    (tmp_path / "data.csv").write_text("\n".join(["a,b,y", *lines, "1e9,1,2", "x\x1b[31m,1,2", "1e9,2,2"]) + "\n")
    done = call("run", config, "--log-level", "error")
    assert done.exit_code == 0, done.stderr
    return "state/dead-letters.jsonl"


def test_dead_letters_are_counted(call, letters):
    done = call("dead-letters", letters)
    assert (done.exit_code, done.stderr) == (0, "")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["reason", "stage", "letters"],
        ["out_of_range", "validate", "2"],
        ["wrong_type", "decode", "1"],
        ["all", "3"],
    ]
    found = json.loads(call("dead-letters", letters, "--json", "--show", "1", "--reason", "wrong_type").stdout)
    assert found["counts"] == [{"reason": "wrong_type", "stage": "decode", "letters": 1}]
    assert (found["letters"], found["shown"][0]["record"]) == (1, "x\x1b[31m,1,2")


def test_dead_letters_are_shown_without_steering_the_terminal(call, letters):
    done = call("dead-letters", letters, "--show", "2")
    assert done.stdout.count("path data.csv, offset") == 2
    assert "\\x1b[31m" in done.stdout
    assert "\x1b" not in done.stdout


def test_dead_letters_are_replayed(call, config, letters):
    arguments = ["dead-letters", letters, "--replay", config, "--set", "model.range_factor=1e12"]
    dry = call(*arguments, "--dry-run", "--json")
    assert json.loads(dry.stdout)["learned"] == 2, dry.stderr
    done = call(*arguments)
    assert done.exit_code == 0, done.stderr
    assert "        2  learned\n        1  stay: still refused (wrong_type)\n" in done.stdout
    assert "checkpoint state/checkpoint-000000000002.safetensors" in done.stdout
    assert json.loads(call("dead-letters", letters, "--json").stdout)["letters"] == 1
    assert json.loads(call("inspect", "state", "--json").stdout)["n"] == 52


@pytest.mark.parametrize(
    "arguments", [["--set", "model.seed=1"], ["--replay", "config.toml", "--show", "1"]], ids=["set", "show"]
)
def test_options_of_dead_letters_that_do_not_go_together(call, config, arguments):
    done = call("dead-letters", "config.toml", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")


# --- demo -----------------------------------------------------------------------------------------------------------


def test_the_demonstrations_keep_apart(call, monkeypatch):
    asked = []

    @contextmanager
    def run_demo(place, *, port, on_batch, classify):
        asked.append((str(place), port, classify))
        yield Report("a table", ["places"], lambda: None)

    monkeypatch.setattr("streammoe.commands.demo.run_demo", run_demo)
    for options in ([], ["--classify"]):
        done = call("demo", "--port", "0", *options)
        assert (done.exit_code, done.stdout) == (0, "a table\n\nplaces\n")
    assert asked == [("demo-state", 0, False), ("demo-state/classes", 0, True)]


# --- others' words --------------------------------------------------------------------------------------------------

FORGED = "a.csv\n2026-01-01 00:00:00,000 INFO all is well\r\x1b[2J\x1b]0;title\x07\u202egnp.exe\x85\u2028end"


def lines_of(text):
    """As terminals and readers of logs count them."""
    return [line for line in re.split("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]", text) if line]


def test_a_log_line_stays_one_line_and_commands_no_terminal():
    record = logging.LogRecord("streammoe", logging.WARNING, "here", 1, "refused %s", (FORGED,), None)
    line = Lines("%(levelname)s %(message)s").format(record)
    assert lines_of(line) == [line]
    assert line.isprintable()
    assert line.startswith(r"WARNING refused a.csv\n2026-01-01")
    assert record.args == (FORGED,)  # other handlers get what was said


def test_a_traceback_stays_readable_and_forges_nothing():
    try:
        raise ValueError(FORGED)
    except ValueError:
        record = logging.LogRecord("streammoe", logging.ERROR, "here", 1, "a bug", None, sys.exc_info())
    lines = Lines("%(message)s").format(record).split("\n")
    assert lines[0] == "a bug"
    assert all(line.isprintable() for line in lines)
    assert any("ValueError: a.csv" in line for line in lines)


def test_an_error_is_one_line_and_several_problems_are_several(capsys):
    with pytest.raises(SystemExit), exit_codes():
        raise SourceError(f"{FORGED} cannot be read")
    assert len(lines_of(capsys.readouterr().err)) == 1
    with pytest.raises(SystemExit), exit_codes():
        raise ConfigError("one", FORGED)
    assert [line[:8] for line in lines_of(capsys.readouterr().err)] == ["error: o", "error: a"]


def test_inspect_shows_no_escapes_of_a_checkpoint(tmp_path):
    model = MoERegressor(n_experts=2)
    path = tmp_path / "model.safetensors"
    path.write_bytes(encode(model.arrays(), {**model.describe(), "version": FORGED, "created": FORGED}))
    shown = CliRunner().invoke(main, ["inspect", str(path)]).output
    assert "\x1b" not in shown
    assert shown.count("all is well") == 2
    assert not [line for line in lines_of(shown) if line.startswith("2026")]
