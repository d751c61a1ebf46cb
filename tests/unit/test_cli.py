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


def test_the_commands_that_are_promised():
    assert {"run", "check-config", "inspect", "demo", "evaluate", "fit", "dead-letters"} <= COMMANDS.keys()


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_the_help_lists_every_command_with_a_sentence(call, option):
    done = call(option)
    assert done.exit_code == 0
    for name, command in COMMANDS.items():
        assert f"\n  {name} " in done.stdout
        assert command.get_short_help_str()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_commands_help_has_an_example_and_both_log_options(call, name):
    done = call(name, "--help")
    assert done.exit_code == 0
    assert re.search(rf"^ +Example:\n +streammoe {name}\b", done.stdout, re.MULTILINE)
    assert "--log-level [debug|info|warning|error]" in done.stdout
    assert "--log-format [text|json]" in done.stdout


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_examples_use_only_what_there_is(name):
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


@pytest.mark.parametrize("wrong", [["run"], ["nonsense"], ["run", "c.toml", "--log-level", "loud"], ["run", "--bogus"]])
def test_a_wrong_command_line_is_told_on_stderr(call, wrong):
    done = call(*wrong)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "Usage: " in done.stderr


# --- check-config ---------------------------------------------------------------------------------------------------


def test_check_config_opens_nothing(call, config, tmp_path):
    (tmp_path / "data.csv").unlink()
    before = sorted(tmp_path.rglob("*"))
    done = call("check-config", config)
    assert (done.exit_code, done.stdout, done.stderr) == (0, f"{config}: no errors\n", "")
    assert sorted(tmp_path.rglob("*")) == before


def test_check_config_tells_every_error_at_once_and_the_nearest_name(call, config):
    config.write_text('[source]\nkind = "file"\n[model]\nn_expert = 3\ndegree = "two"\n[modle]\n')
    done = call("check-config", config, "--set", "metrics.port=70000")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 6
    for said in (
        f"error: model.n_expert: unknown setting (from {config}); did you mean n_experts?",
        "error: model.degree: must be a whole number, got 'two'",
        "error: modle: unknown section",
        "error: schema.target: required",
        "error: source.path: required",
        "got 70000 (from flag metrics.port)",
    ):
        assert said in done.stderr


def test_check_config_knows_the_connectors_own_settings(call, config):
    done = call("check-config", config, "--set", "source.block_bytes=1", "--set", "source.pth=x")
    assert done.exit_code == 2
    assert "source.block_bytes: must be at least 4096, got 1" in done.stderr
    assert "source.pth: unknown setting (from flag source.pth); did you mean path?" in done.stderr


def test_check_config_warns_of_settings_without_effect(call, config):
    idle = {"averaging_rate": 0.1, "drift_restart": 50, "max_experts": 9, "degrees_of_freedom": 3.0}
    done = call(
        "check-config", config, *[word for name, value in idle.items() for word in ("--set", f"model.{name}={value}")]
    )
    assert (done.exit_code, done.stdout) == (0, f"{config}: no errors\n")
    assert len(done.stderr.splitlines()) == len(idle)
    for name, value in idle.items():
        assert f"WARNING model.{name} = {value} has no effect where " in done.stderr
    done = call("check-config", config, "--set", "model.reseed=auto", "--set", "model.n_experts=1")
    assert "model.reseed = 'auto' has no effect where model.n_experts = 1; set n_experts to 2 or more" in done.stderr


def test_an_unknown_kind_of_source_names_those_there_are(call, config):
    done = call("check-config", config, "--set", "source.kind=kafak")
    assert done.exit_code == 2
    assert "source.kind: must be one of file" in done.stderr


@pytest.mark.parametrize("content", ["[source", b"\xff\xfe"])
def test_a_file_that_is_no_toml(call, config, content):
    config.write_bytes(content if isinstance(content, bytes) else content.encode())
    done = call("check-config", config)
    assert done.exit_code == 2
    assert str(config) in done.stderr


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


@pytest.mark.parametrize("level", LEVELS)
def test_the_level_of_the_log(call, config, level):
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


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint", b"\xff" * 100])
def test_inspect_refuses_what_is_no_checkpoint(call, tmp_path, damage):
    (tmp_path / "x.safetensors").write_bytes(damage)
    done = call("inspect", "x.safetensors")
    assert done.exit_code == 4
    assert "error: x.safetensors: not a checkpoint" in done.stderr


# --- exit codes and logs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ConfigError("one", "two"), 2, "error: one\nerror: two\n"),
        (SourceError("one"), 3, "error: one\n"),
        (CheckpointError("one"), 4, "error: one\n"),
        (TooManyBadRecords("one"), 5, "error: one\n"),
        (StreammoeError("one"), 70, "error: one\n"),
    ],
)
def test_an_error_of_the_tree_is_told_without_traceback(capsys, error, code, told):
    with pytest.raises(SystemExit) as left, exit_codes():
        raise error
    assert left.value.code == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", told)


def test_anything_else_is_a_bug_with_its_traceback(caplog):
    with pytest.raises(SystemExit) as left, exit_codes():
        raise ZeroDivisionError("just like that")
    assert left.value.code == 70
    assert "this is a bug" in caplog.text
    assert "ZeroDivisionError: just like that" in caplog.text


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "error: the process ran out of memory; give it more"),
        (OSError(errno.EMFILE, "Too many open files"), "error: the process ran out of file descriptors; raise the"),
        (OSError(errno.ENFILE, "Too many open files in system"), "error: the process ran out of file descriptors"),
    ],
)
def test_want_of_what_the_system_gives_is_no_bug(capsys, caplog, error, said):
    with pytest.raises(SystemExit) as left, exit_codes():
        raise error
    assert left.value.code == 70
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(said)
    assert err.count("\n") == 1
    assert "bug" not in caplog.text


def test_a_log_line_is_json_with_the_traceback_inside():
    try:
        raise ZeroDivisionError("ünd so\nweiter")
    except ZeroDivisionError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("streammoe.x", logging.ERROR, "x.py", 1, "said %s", ("it",), info)
    record.created = 0.5
    line = JsonLines().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert found.pop("traceback").endswith("weiter")
    assert found == {
        "time": "1970-01-01T00:00:00.500+00:00",
        "level": "error",
        "logger": "streammoe.x",
        "message": "said it",
    }


@pytest.mark.parametrize("level", LEVELS)
def test_what_the_client_of_kafka_logs_is_for_debugging(level, capsys):
    set_up_logging(level, "text")
    logging.getLogger("kafka.conn").error("connect failed")
    logging.getLogger("streammoe.kafka").error("no broker answers")
    shown = capsys.readouterr().err
    assert "no broker answers" in shown
    assert ("connect failed" in shown) == (level == "debug")


def test_there_is_no_progress_bar_without_a_terminal(capsys):
    with progress_bar("learning") as follow:
        follow((1, 2))
        follow(None)
    assert capsys.readouterr() == ("", "")


def test_the_progress_bar_follows_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress_bar("learning") as follow:
        for progress in ((0, 0), (1, 4), None, (4, 4)):
            follow(progress)
    out, err = capsys.readouterr()
    assert out == ""
    assert "learning" in err
    assert "100%" in err


# --- evaluate -------------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path):
    lines = [f"{i % 7},{i % 5},{i % 7 - i % 5},{'even' if i % 2 else 'odd'}" for i in range(300)]
    (tmp_path / "many.csv").write_text("\n".join(["a,b,y,z", *lines, "x,1,2,odd"]) + "\n")
    return tmp_path


SMALL = ["--n-experts", 2, "--warmup", 100, "--log-level", "error"]


def test_evaluate_finds_how_many_experts_there_are(call, data):
    options = ["--ignore", "z", "--n-experts", "auto", "--set", "model.max_experts=2", "--warmup", 100]
    done = call("evaluate", "many.csv", "--target", "y", *options, "--log-level", "error")
    assert done.exit_code == 0, done.stderr
    assert re.search(r"^streammoe, [12] experts? ", done.stdout, re.MULTILINE)


def test_evaluate_prints_a_table_and_writes_nothing(call, data):
    before = sorted(data.rglob("*"))
    done = call("evaluate", "many.csv", "--target", "y", "--ignore", "z", "--against", "river:LinearRegression", *SMALL)
    assert done.exit_code == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("many.csv: 300 events")
    for said in ("streammoe, 2 experts", "river LinearRegression", "running mean", "refused 1 (wrong_type)"):
        assert said in done.stdout
    assert sorted(data.rglob("*")) == before


def test_evaluate_prints_json(call, data):
    done = call("evaluate", "many.csv", "--target", "z", "--classify", "--features", "a,b", "--json", *SMALL)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["metric"], found["events"], found["learned"], found["rejected"]) == ("accuracy", 301, 300, 1)
    assert found["settings"]["schema"]["features"] == ["a", "b"]


def test_every_option_of_evaluate_reaches_its_setting(call, data):
    options = {
        "--degree": 2,
        "--gate-degree": 2,
        "--schedule": "constant:0.05",
        "--bound": "paper",
        "--averaging": "none",
        "--drift": "page_hinkley",
        "--seed": 4,
        "--ignore": "z",
        "--categorical": "a",
        "--weight": "b",
        "--set": "model.prior_strength=0.2",
    }
    done = call(
        "evaluate", "many.csv", "--target", "y", "--json", *SMALL, *[word for pair in options.items() for word in pair]
    )
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)["settings"]
    expected = {"degree": 2, "gate_degree": 2, "bound": "paper", "averaging": "none", "seed": 4, "prior_strength": 0.2}
    expected["drift"] = "page_hinkley"
    assert {name: found["model"][name] for name in expected} == expected
    assert found["model"]["schedule"] == {"kind": "constant", "gamma": 0.05}
    assert (found["model"]["n_experts"], found["model"]["warmup"]) == (2, 100)
    schema = {"ignore": ["z"], "categorical": ["a"], "weight": "b"}
    assert {name: found["schema"][name] for name in schema} == schema


def test_evaluate_draws_and_writes_what_it_is_asked_for(call, data):
    before = {path.name for path in data.iterdir()}
    done = call("evaluate", "many.csv", "--target", "y", "--ignore", "z", *SMALL, "--plot", "o.png", "--html", "o.html")
    assert done.exit_code == 0, done.stderr
    assert {path.name for path in data.iterdir()} - before == {"o.png", "o.html"}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere.csv", "--target", "y"], 3, "nowhere.csv"),
        (["many.csv", "--target", "q"], 3, "has no column 'q'"),
        (["many.csv", "--target", "y", "--target", "z", "--classify"], 2, "must be one column"),
        (["many.csv", "--target", "y", "--ignore", "y"], 2, "schema.ignore: must not hold the target 'y'"),
        (["many.csv", "--target", "y", "--n-experts", "0"], 2, "model.n_experts: must be at least 1"),
        (["many.csv", "--target", "y", "--n-experts", "lots"], 2, "model.n_experts: must be a whole number, or 'auto'"),
        (["many.csv", "--target", "y", "--schedule", "linear"], 2, "--schedule 'linear': must begin with one of"),
        (["many.csv", "--target", "y", "--schedule", "constant:2"], 2, "model.schedule.gamma: must be less than 1"),
        (["many.csv", "--target", "y", "--set", "checkpoint.dir=x"], 2, "--set checkpoint.dir: evaluate has no such"),
        (["many.csv", "--target", "y", "--set", "model.sed=1"], 2, "did you mean seed?"),
        (["many.csv", "--target", "y", "--against", "river:os"], 2, "--against 'river:os': must be a regressor"),
        (["many.csv", "--target", "y", "--plot", "no/o.png"], 2, "--plot no/o.png: there is no folder no"),
        (["-", "--target", "y"], 2, "--format: required where FILE is -"),
        (["many.csv"], 2, "Missing option '--target'"),
    ],
)
def test_what_evaluate_cannot_do_is_told_with_its_code(call, data, arguments, code, said):
    before = sorted(data.rglob("*"))
    done = call("evaluate", *arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(data.rglob("*")) == before


# --- fit ------------------------------------------------------------------------------------------------------------

QUIET = ["--n-experts", 2, "--log-level", "error"]


def test_fit_prints_a_table_and_writes_nothing(call, data):
    before = sorted(data.rglob("*"))
    done = call("fit", "many.csv", "--target", "y", "--ignore", "z", "--rounds", 3, *QUIET)
    assert done.exit_code == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("many.csv: 300 rows fitted by em, ")
    for said in ("log-loss", "RMSE", "objective", "shares", "refused 1 (wrong_type); the first, at path many.csv"):
        assert said in done.stdout
    assert "model " not in done.stdout
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


def test_fit_tells_of_refused_records_and_of_what_it_fits(call, data):
    done = call("fit", "many.csv", "--target", "y", "--ignore", "z", "--n-experts", 2, "--rounds", 1)
    assert done.exit_code == 0
    assert "WARNING many.csv: not fitting 1 of 301 records: refused (1 wrong_type)" in done.stderr
    assert "fitting 2 experts to 300 rows" in done.stderr
    assert re.search(r"^experts +2$", done.stdout, re.MULTILINE)


def test_fit_says_up_to_how_many_experts_and_then_how_many(call, data):
    auto = ["--n-experts", "auto", "--set", "model.max_experts=2", "--rounds", 1]
    done = call("fit", "many.csv", "--target", "y", "--ignore", "z", *auto)
    assert done.exit_code == 0, done.stderr
    assert "fitting up to 2 experts to 300 rows" in done.stderr
    assert re.search(r"^experts +[12] +chosen among 1 to 2$", done.stdout, re.MULTILINE)


def test_fit_of_a_file_that_is_mostly_refused_ends_with_a_code_and_no_model(call, tmp_path):
    sound, broken = [f"{i},{i % 3}" for i in range(40)], ["?,1"] * 39
    (tmp_path / "half.csv").write_text("\n".join(["a,y", *sound, *broken, "2,x"]))
    named = ["half.csv", "--target", "y", "--n-experts", 1, "--out", "m.model"]
    assert call("fit", *named).exit_code == 0
    (tmp_path / "m.model").unlink()
    (tmp_path / "half.csv").write_text("\n".join(["a,y", *sound, *broken, "2,x", "3,x"]))
    done = call("fit", *named)
    assert (done.exit_code, done.stdout) == (5, "")
    assert "error: half.csv: nothing was fitted, since 41 of 81 records were refused, and dead_letters" in done.stderr
    assert "allows 0.5 of them (41 wrong_type). The first: field 'a' is '?'" in done.stderr
    assert not (tmp_path / "m.model").exists()
    assert call("fit", *named, "--set", "dead_letters.max_ratio=0.6").exit_code == 0
    (tmp_path / "c.toml").write_text("""
        source = { kind = "stdin", format = "csv" }
        schema.target = "y"
        dead_letters.max_ratio = 1.0
    """)
    assert call("fit", *named, "--config", "c.toml").exit_code == 0


def test_a_file_that_is_mostly_refused_is_not_scored(call, tmp_path):
    (tmp_path / "half.csv").write_text("\n".join(["a,y", *[f"{i},{i % 3}" for i in range(40)], *["?,1"] * 41]))
    named = ["evaluate", "half.csv", "--target", "y", "--n-experts", 1]
    done = call(*named)
    assert (done.exit_code, done.stdout) == (5, "")
    assert call(*named, "--set", "dead_letters.max_ratio=0.6").exit_code == 0


@pytest.mark.parametrize("command", ["fit", "evaluate"])
def test_a_target_of_labels_is_answered_with_the_option_for_it(call, data, command):
    done = call(command, "many.csv", "--target", "z")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "The first: field 'z' is 'odd'" in done.stderr
    assert "a target that is a label asks for --classify" in done.stderr


def test_every_option_of_fit_reaches_its_setting(call, data):
    options = {
        "--degree": 2,
        "--gate-degree": 2,
        "--bound": "paper",
        "--averaging": "none",
        "--seed": 4,
        "--ignore": "z",
        "--categorical": "a",
        "--weight": "b",
        "--set": "model.prior_strength=0.2",
        "--rounds": 2,
        "--method": "gradient_descent",
        "--step": 1e-3,
        "--tolerance": 0,
    }
    words = [word for pair in options.items() for word in pair]
    done = call("fit", "many.csv", "--target", "y", "--json", *QUIET, *words)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    model = {"degree": 2, "gate_degree": 2, "bound": "paper", "averaging": "none", "seed": 4, "prior_strength": 0.2}
    assert {name: found["settings"]["model"][name] for name in model} == model
    schema = {"ignore": ["z"], "categorical": ["a"], "weight": "b"}
    assert {name: found["settings"]["schema"][name] for name in schema} == schema
    assert (found["method"], found["rounds"], found["learned"]) == ("gradient_descent", 2, 241)


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
    told = call("fit", *asked, "--from-model", "m.model", "--rounds", 1, "--log-level", "info")
    assert second.exit_code == 0, second.stderr
    first, second = json.loads(first.stdout), json.loads(second.stdout)
    assert second["start"] == "model"
    assert "beginning at the parameters of m.model; the 300 events behind them are not learned again" in told.stderr
    assert second["objective_at_start"] == pytest.approx(first["objective"], abs=1e-2)
    assert second["objective"] >= second["objective_at_start"]
    other = call("fit", *asked, "--from-model", "m.model", "--degree", 2)
    assert other.exit_code == 4
    assert "model.degree is 2, and it has 1" in other.stderr


def test_a_fit_that_is_stopped_while_it_reads_ends_without_results(call, data, monkeypatch):
    monkeypatch.setattr(
        "streammoe.daemon.signals.StopFlag.__enter__", lambda flag: setattr(flag, "requested", 1) or flag
    )
    monkeypatch.setattr("streammoe.daemon.signals.StopFlag.__exit__", lambda *_: None)
    done = call("fit", "many.csv", "--target", "y", "--ignore", "z", "--out", "m.model", *QUIET)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "Aborted!" in done.stderr
    assert not (data / "m.model").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere.csv", "--target", "y"], 3, "nowhere.csv"),
        (["many.csv", "--target", "q"], 3, "has no column 'q'"),
        (
            ["many.csv", "--target", "z"],
            3,
            "many.csv: no event could be learned; records were refused (301 wrong_type)",
        ),
        (["many.csv"], 2, "Missing option '--target'"),
        (["many.csv", "--config", "no.toml"], 2, "no.toml"),
        (["many.csv", "--target", "y", "--n-experts", "0"], 2, "model.n_experts: must be at least 1"),
        (
            ["many.csv", "--target", "y", "--set", "checkpoint.dir=x"],
            2,
            "--set checkpoint.dir: fit has no such setting",
        ),
        (["many.csv", "--target", "y", "--method", "newton"], 2, "method: 'newton' is not known; choose one of em,"),
        (["many.csv", "--target", "y", "--step", "1"], 2, "step: em takes no step size"),
        (["many.csv", "--target", "y", "--rounds", "0"], 2, "rounds: got 0"),
        (["many.csv", "--target", "y", "--out", "no/m.model"], 2, "--out no/m.model: there is no folder no"),
        (["many.csv", "--target", "y", "--trace", "."], 2, "--trace .: is a folder; name a file in it"),
        (["many.csv", "--target", "y", "--plot", "t.gif"], 2, "--plot t.gif: must end in one of .png"),
        (["many.csv", "--target", "y", "--from-model", "no.model"], 4, "no.model"),
        (["-", "--target", "y"], 2, "--format: required where FILE is -"),
    ],
)
def test_what_fit_cannot_do_is_told_with_its_code(call, data, arguments, code, said):
    before = sorted(data.rglob("*"))
    done = call("fit", *arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(data.rglob("*")) == before


def test_the_methods_that_help_names_are_those_there_are(call):
    assert ", ".join(batch.METHODS) in call("fit", "--help").stdout.replace("\n", " ").replace("  ", " ")


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
    ("arguments", "code", "said"),
    [
        (["nowhere"], 3, "nowhere: cannot be read"),
        (["config.toml"], 3, "is a dead letter"),
        (["config.toml", "--dry-run"], 2, "need --replay"),
        (["config.toml", "--set", "model.seed=1"], 2, "need --replay"),
        (["config.toml", "--replay", "config.toml", "--show", "1"], 2, "do not go together"),
        (["config.toml", "--replay", "config.toml"], 4, "there is no checkpoint"),
        (["config.toml", "--replay", "nowhere.toml"], 2, "nowhere.toml: cannot be read"),
    ],
)
def test_what_dead_letters_cannot_do_is_told_with_its_code(call, config, arguments, code, said):
    done = call("dead-letters", *arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    assert said in done.stderr


# --- demo -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "folder"), [([], "demo-state"), (["--classify"], "demo-state/classes")])
def test_the_demonstrations_keep_apart(call, tmp_path, monkeypatch, options, folder):
    asked = []

    @contextmanager
    def run_demo(place, *, port, on_batch, classify):
        asked.append((str(place), port, classify))
        yield Report("a table", ["places"], lambda: None)

    monkeypatch.setattr("streammoe.commands.demo.run_demo", run_demo)
    done = call("demo", "--port", "0", *options)
    assert (done.exit_code, done.stdout) == (0, "a table\n\nplaces\n")
    assert asked == [(folder, 0, bool(options))]


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


def test_json_lines_escape_by_themselves():
    record = logging.LogRecord("streammoe", logging.WARNING, "here", 1, "refused %s", (FORGED,), None)
    line = JsonLines().format(record)
    assert line.isascii()
    assert lines_of(line) == [line]


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
