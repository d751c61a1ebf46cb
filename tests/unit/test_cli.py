"""What the commands say about themselves and how failures become exit codes; tests/process runs them for real."""

import errno
import json
import logging
import re
import shlex
import shutil
import sys

import pytest
from click.testing import CliRunner

import streammoe
from streammoe.commands import main
from streammoe.console import LEVELS, JsonLines, Lines, exit_codes, plain, set_up_logging
from streammoe.errors import CheckpointError, ConfigError, SourceError, StreammoeError, TooManyBadRecords
from streammoe.estimators import MoERegressor
from streammoe.persistence import encode

pytestmark = pytest.mark.usefixtures("logging_as_before")

COMMANDS = {name: main.get_command(None, name) for name in main.list_commands(None)}


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Call a command of which this exit code is expected."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments, code=0):
        done = CliRunner().invoke(main, list(map(str, arguments)))
        assert done.exit_code == code, done.output
        assert code != 2 or not done.stdout
        return done

    return call


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


@pytest.fixture
def data(tmp_path):
    lines = [f"{i % 7},{i % 5},{i % 7 - i % 5},{'even' if i % 2 else 'odd'}" for i in range(300)]
    (tmp_path / "many.csv").write_text("\n".join(["a,b,y,z", *lines, "x,1,2,odd"]) + "\n")
    return tmp_path


# --- help -----------------------------------------------------------------------------------------------------------


def test_help_has_every_command_with_its_log_options_and_examples_that_work(call):
    assert streammoe.__version__ in call("--version").stdout
    overview = call("-h").stdout
    assert {
        *("run", "check-config", "inspect", "demo", "evaluate", "fit", "dead-letters"),
        *("rollback", "backup", "restore", "status"),
    } <= set(COMMANDS)
    for name, command in {None: main, **COMMANDS}.items():
        if name is not None:
            assert re.search(rf"\n  {name} +\w", overview)
            text = call(name, "--help").stdout
            assert "--log-level [debug|info|warning|error]" in text
            assert "--log-format [text|json]" in text
        examples = [shlex.split(line) for line in command.help.split("Example:")[1].splitlines() if line.strip()]
        assert examples
        for program, used, *arguments in examples:
            assert (program, name or used) == ("streammoe", used)
            COMMANDS[used].make_context(used, arguments)  # raises what a user would read


# --- check-config and run -------------------------------------------------------------------------------------------


def test_what_run_says_of_files_is_said_before_and_nothing_is_written(call, config, tmp_path):
    config.write_text(config.read_text() + "model = { n_experts = 1, warmup = 10 }\n")
    (tmp_path / "binary.parquet").write_bytes(b"what?")
    (tmp_path / "folder").mkdir()
    (tmp_path / "lists.jsonl").write_text('{"a": 1, "y": 2}\n')
    for flag in (
        *(f"source.path={path}" for path in ("none.csv", "none-*.csv", "folder", "folder/none.csv", "binary.parquet")),
        *("schema.target=z", "source.format=parquet", "schema.max_columns=1"),
    ):
        words = [config, "--log-level", "error", "--set", flag]
        before = sorted(path.name for path in tmp_path.iterdir())
        checked = call("check-config", *words, code=3)
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        assert call("run", *words, "--fresh", code=3).stderr == checked.stderr, flag
        shutil.rmtree(tmp_path / "state")
    call("check-config", config, "--set", "source.path=lists.jsonl")
    assert "s3fs" in call("check-config", config, "--set", "checkpoint.mirror=s3://there/x", code=2).stderr
    call("run", config, "--log-level", "error")
    (tmp_path / "data.csv").write_text("a,b,y\n")
    assert call("check-config", config, code=3).stderr == call("run", config, "--log-level", "error", code=3).stderr


# --- exit codes and logs --------------------------------------------------------------------------------------------

FORGED = "a.csv\n2026-01-01 00:00:00,000 INFO all is well\r\x1b[2J\x1b]0;title\x07\u202egnp.exe\x85\u2028end"


def lines_of(text):
    """As terminals and readers of logs count them."""
    return [line for line in re.split("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]", text) if line]


FAILURES = [
    (ConfigError("one", FORGED), 2, 2),
    (SourceError(FORGED), 3, 1),
    (CheckpointError("one"), 4, 1),
    (TooManyBadRecords("one"), 5, 1),
    (StreammoeError("one"), 70, 1),
    (MemoryError(), 70, 1),
    (OSError(errno.EMFILE, "Too many open files"), 70, 1),
    (OSError(errno.ENOSPC, "No space left on device"), 70, 1),
]
"""What a user can mend, its exit code, and how many lines say it."""


def test_what_a_user_can_mend_is_reported_without_traceback_and_a_bug_with_it(capsys, caplog):
    for error, code, lines in FAILURES:
        with pytest.raises(SystemExit) as left, exit_codes():
            raise error
        assert left.value.code == code, error
        out, err = capsys.readouterr()
        assert (out, [line[:7] for line in lines_of(err)]) == ("", ["error: "] * lines)
    assert caplog.text == ""
    with pytest.raises(SystemExit) as left, exit_codes():
        raise ZeroDivisionError("just like that")
    assert left.value.code == 70
    assert "ZeroDivisionError: just like that" in caplog.text


def test_a_log_line_is_json_with_the_traceback_inside():
    try:
        raise ZeroDivisionError("ünd so\nweiter")
    except ZeroDivisionError:
        record = logging.LogRecord("streammoe.x", logging.ERROR, "x.py", 1, "said %s", ("it",), sys.exc_info())
    record.created, record.event = 0.5, "drift"
    line = JsonLines().format(record)
    assert ("\n" in line, line.isascii()) == (False, True)
    found = json.loads(line)
    assert found.pop("traceback").endswith("weiter")
    time = "1970-01-01T00:00:00.500+00:00"
    assert found == {"time": time, "level": "error", "logger": "streammoe.x", "message": "said it", "event": "drift"}


def test_the_level_of_the_log_and_what_the_client_of_kafka_logs_is_for_debugging(capsys):
    for level in LEVELS:
        set_up_logging(level, "text")
        logging.getLogger("kafka.conn").error("connect failed")
        logging.getLogger("streammoe.kafka").error("no broker answers")
        logging.getLogger("streammoe.kafka").debug("a detail")
        shown = capsys.readouterr().err
        assert "no broker answers" in shown
        assert ("connect failed" in shown, "a detail" in shown) == (level == "debug",) * 2


# --- evaluate and fit -----------------------------------------------------------------------------------------------

QUIET = ["--set", "model.n_experts=2", "--log-level", "error"]
Y = ["many.csv", "--target", "y", "--ignore", "z", *QUIET]


def test_fit_prints_a_table_or_json_and_writes_what_it_is_asked_for(call, data):
    done = call("fit", *Y, "--rounds", 3)
    for said in ("300 rows", "log-loss", "RMSE", "objective", "shares", "wrong_type"):
        assert said in done.stdout
    assert (done.stderr, [path.name for path in data.iterdir()]) == ("", ["many.csv"])
    asked = ["--target", "z", "--classify", "--ignore", "y", "--rounds", 4, "--tolerance", 0]
    found = json.loads(call("fit", "many.csv", *asked, "--json", "--out", "m.model", *QUIET).stdout)
    assert (found["events"], found["learned"], found["rejected"]) == (301, 300, 1)
    assert (found["start"], found["rounds"], found["converged"]) == ("warmup", 4, False)
    assert (found["refused"][0]["reason"], found["rmse"]) == ("wrong_type", None)
    assert {path.name for path in data.iterdir()} == {"many.csv", "m.model"}
    assert found["state_digest"] == streammoe.load("m.model").state_digest()
    assert [each["number"] for each in found["trace"]] == [0, 1, 2, 3, 4]
    assert found["trace"][-1]["objective"] == found["objective"]


def test_what_was_rejected_and_what_vanished_stands_at_the_end_of_a_run_and_in_a_table(call, tmp_path):
    rows = [f"{i % 9},{'' if i >= 150 else i % 7},{'five' if i % 10 == 3 else i % 5}" for i in range(300)]
    (tmp_path / "gone.csv").write_text("\n".join(["a,b,y", *rows, ""]))
    (tmp_path / "c.toml").write_text("""
        source = { kind = "file", path = "gone.csv" }
        schema.target = "y"
        model.n_experts = 1
        metrics.enabled = false
    """)
    done = call("run", "c.toml")
    said = "270 of 300 events learned; 30 (10.0%) rejected"
    assert done.stdout.splitlines()[-1] == said
    assert "vanished          b 135\n" in done.stdout
    assert "each of 135 events had 'b', and none has since path gone.csv, offset" in done.stderr
    table = call("evaluate", "gone.csv", "--target", "y", "--set", "model.n_experts=1").stdout
    assert table.startswith(f"gone.csv: {said}. Each is predicted before it is learned\n")
    assert "b has vanished: each event had it at first, and then 135 in succession came without it" in table


def test_fit_takes_model_and_schema_of_a_configuration_and_flags_over_it(call, data, tmp_path):
    (tmp_path / "c.toml").write_text("""
        source = { kind = "stdin", format = "jsonl" }
        schema = { target = "z", ignore = ["y"] }
        model = { kind = "classifier", n_experts = 3, warmup = 50, schedule = { kind = "power", alpha = 0.7 } }
    """)
    found = json.loads(call("fit", "many.csv", "--config", "c.toml", "--json", "--rounds", 1, *QUIET).stdout)[
        "settings"
    ]
    model, schema = found["model"], found["schema"]
    assert (schema["target"], schema["ignore"], model["n_experts"]) == ("z", ["y"], 2)
    assert (model["kind"], model["warmup"], model["schedule"]["alpha"]) == ("classifier", 50, 0.7)


# --- text of others ------------------------------------------------------------------------------------------------


def test_a_log_line_stays_one_line_and_commands_no_terminal():
    record = logging.LogRecord("streammoe", logging.WARNING, "here", 1, "refused %s", (FORGED,), None)
    line = Lines("%(levelname)s %(message)s").format(record)
    assert lines_of(line) == [line]
    assert line.isprintable()
    assert line.startswith(r"WARNING refused a.csv\n2026-01-01")
    try:
        raise ValueError(FORGED)
    except ValueError:
        record = logging.LogRecord("streammoe", logging.ERROR, "here", 1, "a bug", None, sys.exc_info())
    lines = Lines("%(message)s").format(record).split("\n")
    assert all(line.isprintable() for line in lines)
    assert any("ValueError: a.csv" in line for line in lines), "a traceback stays readable"


def test_inspect_reads_a_saved_model_and_shows_no_escapes_of_it(call, tmp_path):
    model = MoERegressor(2, warmup=10)
    model.learn_one({"a": 1.0}, 1.0)
    forged = {**model.describe(), "version": FORGED, "created": FORGED}
    (tmp_path / "m.model").write_bytes(encode(model.arrays(), forged))
    found = json.loads(call("inspect", "m.model", "--json").stdout)
    assert (found["n"], found["state_digest"], found["features"]) == (1, model.state_digest(), ["a"])
    shown = call("inspect", "m.model").stdout
    assert "\x1b" not in shown
    assert shown.count("all is well") == 2
    assert not [line for line in lines_of(shown) if line.startswith("2026")]


def test_what_there_is_not_is_a_dash():
    assert plain({"version": "0.1.0", "revision": "", "generation": None}) == "version 0.1.0, revision -, generation -"
