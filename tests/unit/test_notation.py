"""How values are written: a stream in any notation that settings describe is learned as its plain twin is."""

import json
import math
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from streammoe.columns.values import LocalTime, category, kind_of, number, seconds
from streammoe.commands import main
from streammoe.errors import InvalidEvent
from streammoe.notation import Notation, Notations
from streammoe.pipeline.decoders import decoder
from tests.batches import batch_of, roles_of

N = 120
RNG = np.random.default_rng(8)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# --- one value ------------------------------------------------------------------------------------------------------

GROUPED = Notation(thousands=",", decimal=".")
BLANKS = Notation(thousands=" ", decimal=".")
POINTS = Notation(thousands=".", decimal=",")
UNITS = Notation(
    decimal=".", thousands=",", units=(("%", 0.01), ("$", 1.0), ("°C", 1.0), ("M", 1e6), ("m", 1.0), ("x", 1e300))
)
BRACKETS = Notation(decimal=".", thousands=",", units=(("(", -1.0), (")", 1.0)))
READ = [
    *((GROUPED, text, value) for text, value in (("1,400.0", 1400.0), ("-1,234,567.5e1", -12345675.0), ("5", 5.0))),
    *((GROUPED, text, None) for text in ("1,40", "0,400", "1,4000", ",400", "1,400,", "1.5,400", "1,,400", "1 400")),
    (GROUPED, "12,34,567", 1234567.0),
    *((BLANKS, text, 1234.5) for text in ("1 234.5", "1\u00a0234.5", "1\u202f234.5", " 1\u2009234.5 ")),
    (BLANKS._replace(decimal=","), "-1 234,5", -1234.5),
    (POINTS, "1.234,5", 1234.5),
    (POINTS, "1.5", None),
    (Notation(thousands="'", decimal="."), "1\u2019234", 1234.0),
    *((UNITS, text, -5.0) for text in ("$-5", "-$5", "- $ 5", "\u22125 $", "-5 °C", "-5m", "$-5m")),
    *((UNITS, text, 0.05) for text in ("5%", "5 %", "5\u00a0%", "+5%")),
    *(
        (UNITS, text, None)
        for text in ("%", "$", "$-", "-$-5", "5mm", "5 m m", "5 kg", "%%5", "5 5 %", "5-%", "5%\n", "M5", "")
    ),
    *(
        (UNITS, text, value)
        for text, value in (("M 5", 5e6), ("$1,012.33", 1012.33), ("2.31M", 2.31e6), ("$2.5 M", 2.5e6), ("7", 7))
    ),
    *((BRACKETS, text, value) for text, value in (("(1,234)", -1234.0), ("( 5 )", -5.0), ("5", 5.0))),
    (Notation(decimal="."), "\u00a05", 5.0),
]


def test_a_number_is_read_as_its_notation_says_or_not_at_all():
    for notation, text, value in READ:
        if not text:
            assert math.isnan(number(text, "a", notation=notation))
        elif value is None:
            with pytest.raises(InvalidEvent) as rejected:
                number(text, "a", notation=notation)
            assert (rejected.value.reason, rejected.value.feature) == ("wrong_type", "a")
        else:
            assert number(text, "a", notation=notation) == pytest.approx(value, rel=1e-15)
            assert kind_of(text, notation) == "number"


def test_the_advice_for_a_unit_agrees_with_the_units_that_are_set():
    for units, text, advice in [
        ({"W": 1.0}, "2.129 kW", "units.kW = 1000"),
        ({"kWh": 2.0}, "836 Wh", "units.Wh = 0.002"),
        ({"kW": 1e3}, "1,234 kW", "units.kW = 1000"),
        ({"°C": 1.0}, "5 kW", r"units.kW = 1\b(?!0)"),
    ]:
        with pytest.raises(InvalidEvent, match=advice):
            number(text, "a", notation=Notation(units=tuple(units.items())))


def test_what_is_missing_is_said_by_column_and_a_label_is_missing_only_if_settings_say_so():
    said = Notations(missing={"*": ("off",), "co": (-200,), "country": ()}, decimal=".")
    for value in ("NA", "off", "", None, math.nan, " None "):
        assert math.isnan(number(value, "a", notation=said.of("a")))
        assert category(value, "a", said.of("a")) is None
    for value in (-200, -200.0, "-200", "-2e2"):
        assert math.isnan(number(value, "co", notation=said.of("co")))
        assert number(value, "a", notation=said.of("a")) == -200.0
        assert kind_of(value, said.of("co")) is None
    assert category(-200.0, "co", said.of("co")) is None
    assert [category(text, "country", said.of("country")) for text in ("NA", "off", "")] == [
        "NA",
        "off",
        None,
    ]
    assert [category(text, "y", said.of_label("y")) for text in ("NA", "None", "off")] == [
        "NA",
        "None",
        None,
    ]


def at(*parts, zone="UTC"):
    return datetime(*parts, tzinfo=ZoneInfo(zone)).timestamp()


BERLIN = Notation(zone="Europe/Berlin")
TIMES = [
    (Notation(), "2023-01", at(2023, 1, 1)),
    (Notation(time="%d/%m/%Y"), "01/12/2017", at(2017, 12, 1)),
    (Notation(time="%b %d, %Y"), "Jun 19, 2021", at(2021, 6, 19)),
    (Notation(time="%H:%M %d.%m.%Y"), "20:15 01.12.2017", at(2017, 12, 1, 20, 15)),
    (Notation(time="%Y%m%d"), 20240501, at(2024, 5, 1)),
    (Notation(time="%Y%m%d"), "20240501", at(2024, 5, 1)),
    (Notation(time="%d.%m.%Y %H:%M:%S.%f %z"), "01.05.2024 12:00:00.25 +0200", at(2024, 5, 1, 10) + 0.25),
    *((Notation(time=unit), ticks * at(2024, 5, 1), at(2024, 5, 1)) for unit, ticks in (("s", 1), ("ms", 1000))),
    (Notation(time="us"), str(int(at(2024, 5, 1)) * 10**6), at(2024, 5, 1)),
    (Notation(time="ns"), int(at(2024, 5, 1)) * 10**9, at(2024, 5, 1)),
    (Notation(time="ms"), "2024-05-01", at(2024, 5, 1)),
    (BERLIN, "2024-05-01T12:00", at(2024, 5, 1, 10)),
    (BERLIN, "2024-05-01T12:00Z", at(2024, 5, 1, 12)),
    (BERLIN, "2024-05-01T12:00+00:00", at(2024, 5, 1, 12)),
    (BERLIN, "2024-01", at(2023, 12, 31, 23)),
    (BERLIN, 0.5, 0.5),
    (BERLIN, "2024-10-27T02:30", at(2024, 10, 27, 0, 30)),  # shown twice
    (BERLIN, "2024-03-31T02:30", at(2024, 3, 31, 1, 30)),  # skipped
    (BERLIN, LocalTime(np.datetime64("2024-05-01T12:00:00.5")), at(2024, 5, 1, 10) + 0.5),
    (BERLIN, np.datetime64("2024-05-01T12:00:00"), at(2024, 5, 1, 12)),
    (BERLIN._replace(time="%d.%m.%y"), "01.05.24", at(2024, 4, 30, 22)),
    *((Notation(time="%d/%m/%Y"), text, None) for text in ("2024-05-01", "12/31/2024", "31/02/2024", True, "1", 1.5)),
    *((Notation(time="ms"), text, None) for text in ("01/12/2017", "1,000")),
]


def test_a_time_is_read_as_its_notation_says_or_not_at_all():
    for notation, value, moment in TIMES:
        if moment is None:
            with pytest.raises(InvalidEvent) as rejected:
                seconds(value, "t", notation._replace(decimal="."))
            assert rejected.value.reason == "wrong_type"
        else:
            assert seconds(value, "t", notation._replace(decimal=".")) == moment
    present = Notations(missing={"*": ()}, times={"t": "%d.%m.%Y"})
    with pytest.raises(InvalidEvent) as rejected:
        seconds(math.nan, "t", present.of("t"))
    assert rejected.value.reason == "not_finite"


# --- streams --------------------------------------------------------------------------------------------------------


def plain_rows():
    found = []
    for i in range(N):
        price, load, vol = round(900 + 300 * RNG.random(), 2), int(RNG.integers(10, 90)), int(RNG.integers(1, 99))
        when = datetime(2024, 3, 1, tzinfo=UTC) + timedelta(hours=7 * i)
        y = round(load / 10 + price / 100 + RNG.normal(), 2)
        found.append({"load": load, "price": price, "vol": vol, "when": when, "y": 1000 + y, "w": 1 + i % 2})
    return found


ROWS = plain_rows()
PLAIN = [{**row, "when": row["when"].isoformat()} for row in ROWS]
ODD = [
    {
        "load": f"{row['load']} %" if i % 7 else "n.a.",
        "price": f"$-{row['price']:,}",
        "vol": f"{row['vol']}K" if i % 5 else "NA",
        "when": row["when"].strftime("%H:%M %d.%m.%Y"),
        "y": f"{row['y']:,}",
        "w": f"{row['w']}%",
    }
    for i, row in enumerate(ROWS)
]
TWIN = [
    {
        **row,
        "load": row["load"] * 0.01 if i % 7 else None,
        "price": -row["price"],
        "vol": row["vol"] * 1000 if i % 5 else None,
        "w": row["w"] * 0.01,
    }
    for i, row in enumerate(PLAIN)
]
FLAGS = [
    *("--set", 'schema.thousands=","', "--set", 'schema.units."%"=0.01', "--set", 'schema.units."$"=1'),
    *(
        "--set",
        "schema.units.K=1000",
        "--set",
        "schema.missing.load=n.a.",
        "--set",
        'schema.timestamps.when="%H:%M %d.%m.%Y"',
    ),
]


def advice(message):
    """Return the flags that a message suggests; the first ones if it is in doubt."""
    said = re.findall(r'(schema\.\S+) = ("[^"]*"|\[.*?\]|[\de.+-]+)', re.sub(r" if its comma.*", "", message))
    return [word for name, value in said for word in ("--set", f"{name}={value}")]


def write(name, rows):
    names = list(rows[0])
    if name.endswith("csv"):
        quoted = [[f'"{"" if row[each] is None else row[each]}"' for each in names] for row in rows]
        text = "\n".join([",".join(names), *map(",".join, quoted)])
    elif name.endswith("jsonl"):
        text = "\n".join(map(json.dumps, rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), name)
        return
    Path(name).write_text(text + "\n", encoding="utf-8")


def evaluated(*arguments):
    """Evaluate a file, and return what was printed."""
    fixed = ["--target", "y", "--json"]
    for setting in ("schema.weight=w", "model.n_experts=1", "model.warmup=30"):
        fixed += ["--set", setting]
    done = CliRunner().invoke(main, ["evaluate", *arguments, *fixed])
    assert not done.exit_code, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    folder = tmp_path_factory.mktemp("twin")
    write(str(folder / "twin.jsonl"), TWIN)
    found = evaluated(str(folder / "twin.jsonl"))
    assert found["learned"] == N
    return found["state_digest"]


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
def test_features_target_weight_and_times_in_an_odd_notation_are_learned_like_their_plain_twins(twin, format):
    write(f"odd.{format}", ODD)
    found = evaluated(f"odd.{format}", *FLAGS)
    assert (found["learned"], found["refused"]) == (N, [])
    assert found["state_digest"] == twin


def test_advice_that_is_followed_word_by_word_works(twin):
    """Each record is rejected with the setting that helps against one of its columns; all together read the file."""
    write("odd.csv", ODD)
    flags = ["--set", "schema.missing.load=n.a.", "--set", "schema.timestamps.when=%H:%M %d.%m.%Y"]
    for _ in range(8):
        done = CliRunner().invoke(main, ["evaluate", "odd.csv", "--target", "y", "--set", "schema.weight=w", *flags])
        if not done.exit_code:
            break
        flags += advice(done.stderr)
    assert sum("schema.units" in flag for flag in flags) == 3
    assert evaluated("odd.csv", *flags)["state_digest"] == twin


def test_local_times_are_read_alike_as_text_and_as_typed_columns():
    rows = [{**row, "when": row["when"].replace(tzinfo=None)} for row in ROWS]
    write("typed.parquet", rows)
    write("text.csv", [{**row, "when": row["when"].isoformat()} for row in rows])
    write(
        "utc.csv", [{**row, "when": row["when"].replace(tzinfo=ZoneInfo("Europe/Berlin")).timestamp()} for row in rows]
    )
    digests = {
        evaluated(name, "--set", "schema.time_zone=Europe/Berlin")["state_digest"]
        for name in ("typed.parquet", "text.csv")
    }
    assert digests == {evaluated("utc.csv", "--timestamps", "when")["state_digest"]}


@pytest.mark.parametrize("format", ["csv", "jsonl", "arrow"])
def test_what_is_missing_in_one_column_is_not_in_another_on_any_path(format):
    notations = Notations(missing={"a": (-200, "off"), "y": (-1,)})
    roles = roles_of(("a", "b"), ("y",), weight="w", notations=notations)
    plain = [{"a": -200.0, "b": -200.0, "y": 1.0, "w": 1.0}, {"a": 1.5, "b": -1.0, "y": -1.0, "w": 2.0}]
    found = decoder(format).decode(batch_of(plain, format), roles)
    np.testing.assert_array_equal(found.X, [[math.nan, -200.0], [1.5, -1.0]])
    np.testing.assert_array_equal(found.Y, [[1.0], [math.nan]])
    for name, n in (("a", 1), ("b", 0)):
        odd = batch_of([{**plain[0], "a": "1.5", "b": "2.5", name: "off"}], format)
        # So that JSON has numbers in quotes.
        given = roles._replace(schema=roles.schema._replace(notations=replace(notations, thousands=",")))
        assert len(decoder(format).decode(odd, given).rows) == n
