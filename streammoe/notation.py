"""How values are written: numbers with units, separators and marks, times in formats, and what stands for none."""

from __future__ import annotations

import calendar
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache, cached_property
from typing import NamedTuple
from zoneinfo import ZoneInfo

# Texts that float() reads as finite numbers; it reads others, too.
NUMBER = re.compile(r"[ \t]*[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[ \t]*")
NOT_FINITE = re.compile(r"\s*[+-]?(?:nan(?:\(\w*\))?|inf(?:inity)?)\s*", re.IGNORECASE)
BOOLEANS = {"true": 1.0, "false": 0.0}
"""Truth values in formats that write everything as text, in lower case."""
MISSING = frozenset(
    ["", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NULL", "null", "None", "NaN", "nan", "NAN", "-NaN", "-nan"]
).union(["\\N", "?", "-", "--", "NaT", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#NULL!"])
"""Texts that stand for a missing value in records, as they are spelled."""
MISSPELLED = frozenset({"na", "n/a", "#n/a", "null", "."})
"""In lower case, further texts that usually stand for a missing number."""
CURRENCIES = frozenset(["USD", "EUR", "GBP", "CHF", "JPY", "US$"])
"""Texts that stand for money besides the signs of currencies."""
_MEASURES = (
    "° °C °F C F ℃ ℉ km cm mm nm µm μm ft SM km/h kmh kph mph m/s kn kt kts KT kg mg µg μg lb lbs oz ml mL cl dl m² m³ "
    "m2 m3 km² cm² cm³ ha m³/h m3/h l/min L/min W V Ω Wh kWh MWh GWh kW MW GW kVA kJ MJ kcal kV mV mA Ah mAh Hz kHz "
    "MHz GHz Nm kN Pa hPa kPa MPa bar mbar mmHg inHg psi dB dBm dBA ppm ppb rpm bpm ms µs μs ns kB KB MB GB TB kiB KiB "
    "MiB GiB kbps Mbps Gbps lx lux mol mmol mg/dL mg/L mg/l g/L g/l kg/m³ g/m³ mg/m³ µg/m³ μg/m³ ug/m3 µg/m3 W/m² W/m2"
)
_APART = frozenset(str.split("A m in mi yd g t l L gal J N s sec min h hr hrs d"))
"""Units only with a blank before them: 12A, 5L and 15m may be names."""
UNITS: Mapping[str, float] = {
    **dict.fromkeys(str.split(_MEASURES), 1.0),
    **dict.fromkeys(("K", "k"), 1e3),
    **dict.fromkeys(("B", "bn"), 1e9),
    "M": 1e6,
    "%": 0.01,
    "‰": 0.001,
}
"""Units after a number that are common and mean little else, with their usual factors; money may stand before it, too.

Few are single letters: 4G or 10A may be names, and so may B12, or anything with a word, like 5 stars.
"""
_PREFIXES = {"": 1.0, "n": 1e-9, "µ": 1e-6, "μ": 1e-6, "m": 1e-3, "c": 1e-2, "h": 1e2, "k": 1e3, "K": 1e3}
_PREFIXES |= {"M": 1e6, "G": 1e9, "T": 1e12}
_SCALED = re.compile(
    rf"([{''.join(_PREFIXES)}]?)((?:Wh?|VA?|Ah?|Hz|m|g|s|l|L|J|N|Nm|Pa|bar|B|bps|eV|mol|cal|Ω|lx)(?:/.+)?)"
)
"""Groups: a prefix and the unit without it. A power of a unit has a power of its prefix, and is none of them."""
_LONGER = {"min": 60.0, "h": 3600.0, "d": 86_400.0}
"""Seconds of other units of time."""
_QUANTITY = re.compile(
    r"([+-]?) ?([^\d\s.,+'_-]{0,4}?)( ?)([+-]?(?:\d[\d.,'_ ]*)?\d(?:[eE][+-]?\d+)?)( ?)(\D{0,6})", re.ASCII
)
"""Groups: sign, unit before, a blank, number, a blank, unit after."""
_GROUPED = re.compile(r"[+-]?(?!0)\d{1,3}([ ,'_])(?:\d{2,3}\1)*\d{3}(?:\.\d+)?", re.ASCII)
_GROUPED_COMMA = re.compile(
    r"[+-]?(?!0)\d{1,3}([ .'_])(?:\d{2,3}\1)*\d{3},\d+|[+-]?(?!0)\d{1,3}(?:(\.)\d{3}){2,}", re.ASCII
)
_MAY_BE_GROUPED = re.compile(r"[+-]?(?:0|[1-9]\d{0,2}(?:\.\d{3})?)", re.ASCII)
_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?", re.ASCII)
"""A number with a single comma, which may be its decimal mark."""
_SIGN_BEHIND = re.compile(r"\d[\d.,'_ ]*[.,]\d+ ?-", re.ASCII)
"""An amount as SAP writes negative ones; what has no mark, such as 0-, may be a name."""
_TIDY = str.maketrans({"\u2212": "-", "\u2019": "'", **dict.fromkeys("\u00a0\u2007\u2009\u202f", " ")})


class Remedy(NamedTuple):
    """Settings by which a number in another notation is read."""

    units: Mapping[str, float]
    """Its units, with their usual factors."""
    thousands: str
    """The separator of thousands; nothing if there is none."""
    comma: bool
    """Whether the decimal mark is a comma, or if `thousands` is one too, may be."""


def tidied(text: str) -> str:
    """Return a text without blanks around it, and with plain blanks, minus signs and apostrophes.

    >>> tidied("\u22121\u202f234\u00a0")
    '-1 234'
    """
    return text.strip(" \t") if text.isascii() else text.translate(_TIDY).strip(" \t")


def _scale_of(unit: str) -> tuple[float, str] | None:
    """Return the factor of a unit's prefix, and the unit without it; None if it takes no prefix."""
    if unit in _LONGER:
        return _LONGER[unit], "s"
    match = _SCALED.fullmatch(unit)
    return (_PREFIXES[match[1]], match[2]) if match else None


def factor_of(unit: str, units: Mapping[str, float]) -> float | None:
    """Return the factor of a unit that follows from those of others; None if none does.

    >>> factor_of("kW", {"W": 1.0}), factor_of("Wh", {"kWh": 1.0}), factor_of("min", {"s": 1.0}), factor_of("W", {})
    (1000.0, 0.001, 60.0, None)
    >>> [factor_of(unit, {"m": 1.0, "in": 1.0}) for unit in ("m", "m/s", "km²", "min", "°C")]
    [1.0, None, None, None, None]
    """
    if unit in units:
        return units[unit]
    own = _scale_of(unit)
    for other, factor in units.items():
        scale = _scale_of(other)
        if own and scale and own[1] == scale[1]:
            return factor * own[0] / scale[0]
    return None


def remedy_of(text: str, *, any_word: bool = False) -> Remedy | None:
    """Return what makes a text a number that is not written as one; None if it is one, or was not meant as one.

    Args:
        text: the text.
        any_word: whether any word after a number is a unit, as where nothing but a number can be meant.

    >>> remedy_of("$1,012.33")
    Remedy(units={'$': 1.0}, thousands=',', comma=False)
    >>> remedy_of("280.69-").units
    {'-': -1.0}
    >>> [remedy_of(text).units for text in ("836 W", "230V")], remedy_of("5 stars", any_word=True).units
    ([{'W': 1.0}, {'V': 1.0}], {'stars': 1.0})
    >>> [remedy_of(text) for text in ("0-", "12", "3rd", "4G", "B12", "10115-A", "5 stars", "10-20", "12:30")]
    [None, None, None, None, None, None, None, None, None]
    """
    plain = tidied(text)
    if _SIGN_BEHIND.fullmatch(plain):
        rest = remedy_of(plain[:-1])
        return (rest or Remedy({}, "", comma=False))._replace(units={"-": -1.0})
    match = _QUANTITY.fullmatch(plain)
    if match is None:
        return None
    sign, before, blank, number, apart, after = match.groups()
    money, unit = before.lstrip("("), after.rstrip(" )")
    is_unit = unit in UNITS or (apart and unit in _APART) or (any_word and unit.isalpha()) or _is_money(unit)
    if before.startswith("(") != after.endswith(")") or not (_is_money(money) and is_unit):
        return None
    if money[-1:].isalpha() and not blank:
        return None
    units = {before: -1.0 if before[:1] == "(" else 1.0, after: UNITS.get(unit, 1.0)}  # as accountants write
    units.pop("", None)
    number = sign + number
    thousands, comma = "", False
    if grouped := _GROUPED.fullmatch(number):
        thousands, comma = grouped[1], _COMMA.fullmatch(number) is not None
    elif grouped := _GROUPED_COMMA.fullmatch(number):
        thousands, comma = grouped[1] or grouped[2], True
    elif _COMMA.fullmatch(number):
        comma = True
    elif not NUMBER.fullmatch(number):
        return None
    return Remedy(units, thousands, comma) if units or thousands or comma else None


def _is_money(unit: str) -> bool:
    """Return whether a text is nothing, or stands for a currency."""
    return unit in CURRENCIES or all(unicodedata.category(sign) == "Sc" for sign in unit)


def in_thousands(texts: Iterable[str]) -> str | None:
    """Return the first number with a point if points may separate thousands in all numbers of a column.

    That is so if three digits follow each of them, and some whole number has three digits; none may have more.

    >>> in_thousands(["836", "", "2.129", "-1.174", "12"])
    '2.129'
    >>> [in_thousands(["836", "2.129", more]) for more in ("0.125", "1.5", "1000", "1e3")]
    [None, None, None, None]
    >>> in_thousands(["5", "12.500"]), in_thousands(["836", "12"])
    (None, None)
    """
    plain = [text.strip(" \t") for text in texts if NUMBER.fullmatch(text)]
    has_hundreds = any(re.fullmatch(r"[+-]?\d{3}", text) for text in plain)
    if not has_hundreds or not all(map(_MAY_BE_GROUPED.fullmatch, plain)):
        return None
    return next((text for text in plain if "." in text), None)


_DATES = (
    *("%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d.%m.%Y", "%Y.%m.%d", "%d-%m-%Y", "%m-%d-%Y", "%d/%m/%y", "%m/%d/%y"),
    *("%d.%m.%y", "%d-%m-%y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%d %b %Y", "%d %B %Y", "%d %b %y", "%d-%b-%Y"),
    *("%d-%b-%y", "%d/%b/%Y", "%a, %d %b %Y", "%b %Y", "%B %Y", "%b-%y", "%b-%Y", "%m/%Y", "%Y/%m", "%Y%m%d"),
    *("%Y-%m-%d", "%Y%m%dT%H%M%S", "%Y%m%dT%H%M%SZ"),
)
_DAY = re.compile(r"[A-Za-z\d]+(?:[ ,./-]+[A-Za-z\d]+){0,3}", re.ASCII)
_CLOCK = re.compile(r"(?<!\d)\d{1,2}:\d\d(:\d\d)?(\.\d{1,6})?( ?)([AaPp][Mm])?( ?)([+-]\d\d:?\d\d)?", re.ASCII)
"""Groups, each of which may be missing: seconds, their fraction, a blank, the half of the day, a blank, the offset."""


def formats_of(text: str) -> list[str]:
    """Return the formats of common dates that a text may have, as `Notations.times` has them; none if it is no date.

    A number is one of seconds since 1970, or of parts of them, if that lies between 2001 and 2033.

    >>> formats_of("01/12/2017"), formats_of("Jun 19, 2021"), formats_of("20:15 01.12.2017"), formats_of("10-20")
    (['%d/%m/%Y', '%m/%d/%Y'], ['%b %d, %Y'], ['%H:%M %d.%m.%Y'], [])
    >>> formats_of("01/Jan/2021:10:00:00"), formats_of("20210131"), formats_of("2021013"), formats_of("1609459200000")
    (['%d/%b/%Y:%H:%M:%S'], ['%Y%m%d'], [], ['ms'])
    """
    if text.isdecimal() and len(text) != len("20210131"):
        return [unit for unit, ticks in TICKS.items() if unit != ISO and 1e9 <= int(text) / ticks < 2e9]
    day, whole = text, "{}"
    if clock := _CLOCK.search(text):
        day = (text[: clock.start()] or text[clock.end() :]).strip(" T:,")
        second, fraction, blank, half, other, offset = clock.groups("")
        form = f"{'%I' if half else '%H'}:%M{second and ':%S'}{fraction and '.%f'}{blank}{half and '%p'}{other}"
        whole = text.replace(clock[0], f"{form}{offset and '%z'}").replace(day, "{}", 1)
    names = {*calendar.month_abbr[1:], *calendar.month_name[1:], *calendar.day_abbr, "T", "Z"}
    words = re.findall("[a-z]+", day, re.IGNORECASE)
    if not _DAY.fullmatch(day) or day == "".join(words) or not all(word.title() in names for word in words):
        return []
    found = []
    for form in _DATES:
        with suppress(ValueError):
            datetime.strptime(day, form)  # noqa: DTZ007 - only whether it can be read
            found.append(whole.replace("{}", form))
    return found


def formats_besides_seconds(number: float) -> list[str] | None:
    """Return the formats that a number may have that hardly counts seconds since 1970; None if it may well do so.

    Such numbers look like dates, or would lie within a year of 1970.

    >>> [formats_besides_seconds(each) for each in (20230320, 2023, 45005.04, 1679270400, 946684800.0)]
    [['%Y%m%d'], ['%Y'], [], None, None]
    """
    if not math.isfinite(number):
        return None
    text = as_text(number)
    forms = ["%Y"] if re.fullmatch(r"(?:19|20)\d\d", text) else formats_of(text)
    return None if "s" in forms or not (forms or abs(number) < 366 * DAY) else forms


def is_format(form: object) -> bool:
    """Return whether this is a format of times that can be read; %Z has names of time zones, and drops them.

    >>> [is_format(form) for form in ("%d/%m/%Y", "%Q", "d/m/Y", "%H:%M %Z", 1)]
    [True, False, False, False, False]
    """
    if not isinstance(form, str) or "%" not in form or "%Z" in form:
        return False
    try:
        datetime.strptime(datetime(2026, 12, 31, 23, 59, tzinfo=UTC).strftime(form), form)  # noqa: DTZ007 - a trial
    except (ValueError, re.error):
        return False
    return True


# -- Settings ----------------------------------------------------------------------------------------------------------


SWAPPED = str.maketrans(",.", ".,")
"""Swaps comma and point."""
DAY = 86_400
"""Seconds."""


ISO = "iso"
"""The format of times in ISO 8601, or as numbers of seconds since 1970."""
TICKS = {ISO: 1.0, "s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
"""Formats of times that are numbers: how many of them are a second."""


def as_text(value: bool | float | Decimal) -> str:
    """Return a finite number or a truth value as the text of a category or label.

    >>> [as_text(value) for value in (True, 7, 7.0, 0.1)]
    ['true', '7', '7', '0.1']
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if value == int(value) else repr(float(value))


def toml_key(name: str) -> str:
    """Return the name of a column as a key of a table in TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def missing_advice(name: str, marker: str | float) -> str:
    """Return how to have a text or a number read as a missing value of a column.

    >>> print(missing_advice("the load", -999.0))
    set schema.missing."the load" = [-999]
    """
    written = json.dumps(marker, ensure_ascii=False) if isinstance(marker, str) else as_text(marker)
    return f"set schema.missing.{toml_key(name)} = [{written}]"


class Notation(NamedTuple):
    """How the values of a column are written."""

    missing: frozenset[str] = MISSING
    """Texts that stand for a missing value; NaN is missing if its text is one, and None if an empty text is."""
    codes: frozenset[float] = frozenset()
    """Numbers that do."""
    thousands: str = ""
    units: tuple[tuple[str, float], ...] = ()
    """Texts before or after a number, and their factors."""
    time: str = ISO
    """One of `TICKS`, or a format for `strptime`."""
    zone: str = ""
    """The time zone of times that name none; UTC if empty."""
    decimal: str = ""
    """The decimal mark where everything is a text, as in csv; empty where numbers have a type of their own."""

    def numeral(self, value: str) -> tuple[str, float] | None:
        """Return a text as one that `float` reads, and the factor of its units; None if it is no number.

        >>> Notation(thousands=",", units=(("$", 1.0), ("M", 1e6))).numeral("-$1,012.5 M")
        ('-1012.5', 1000000.0)
        >>> [Notation(units=(("-", -1.0),), decimal=".").numeral(text) for text in ("280.69-", "-280.69", "--5")]
        [('280.69', -1.0), ('-280.69', 1.0), None]
        """
        if self.decimal == "." and NUMBER.fullmatch(value):
            return value, 1.0
        if not (self.decimal or self.units or self.thousands):
            return None
        plain, factor = tidied(value), 1.0
        if self.units and not NUMBER.fullmatch(plain):
            match = _quantity(self.units, self.thousands).fullmatch(plain)
            if match is None:
                return None
            factors = dict(self.units)
            sign, before, number, after = match.groups("")
            plain = sign + number
            factor = factors.get(before, 1.0) * factors.get(after, 1.0)
        if self.thousands and (grouped := _grouped(self.thousands).match(plain)):
            plain = grouped[0].replace(self.thousands, "") + plain[grouped.end() :]
        plain = self.with_point(plain)
        return (plain, factor) if NUMBER.fullmatch(plain) else None

    def with_point(self, text: str) -> str:
        """Return a text with comma and point swapped if the decimal mark is a comma; a point then makes no number."""
        return text.translate(SWAPPED) if self.decimal == "," else text

    def is_missing(self, value: object) -> bool:
        """Return whether a value that is no number in text stands for a missing one."""
        if value is None:
            return "" in self.missing
        if isinstance(value, str):
            return tidied(value) in self.missing
        if isinstance(value, float) and math.isnan(value):
            return "NaN" in self.missing
        return isinstance(value, int | float | Decimal) and not isinstance(value, bool) and value in self.codes

    def utc(self, seconds: int) -> int:
        """Convert a local time, in seconds from 1970 on, to UTC.

        Of a time that clocks show twice the first counts; one that they skip is read as before the change.
        """
        if not self.zone:
            return seconds
        try:
            local = datetime(1970, 1, 1, tzinfo=ZoneInfo(self.zone)) + timedelta(seconds=seconds)
            return seconds - int((local.replace(tzinfo=UTC) - local).total_seconds())
        except OverflowError:  # outside the years 1 to 9999, so that learning rejects it
            return seconds


@cache
def _quantity(units: tuple[tuple[str, float], ...], thousands: str) -> re.Pattern[str]:
    """Return an expression with groups for the sign, the unit before, the number and the unit after it.

    A unit that ends with a letter stands before a number only with a blank between them: M5 is a name. A minus sign
    is a unit only behind it.
    """
    unit = "|".join(re.escape(unit) for unit, _ in sorted(units, key=lambda each: -len(each[0])))
    number = rf"[+-]?[\d.,{re.escape(thousands)}]*(?:[eE][+-]?\d+)?"
    return re.compile(rf"([+-]?) *(?:(?!-)({unit})(?:(?<![^\W\d_])| +) *)?({number}) *({unit})?", re.ASCII)


@cache
def _grouped(separator: str) -> re.Pattern[str]:
    """Return an expression for the whole part of a number with separators of thousands, also in the Indian way."""
    mark = re.escape(separator)
    return re.compile(rf"[+-]?(?!0)\d{{1,3}}{mark}(?:\d{{2,3}}{mark})*\d{{3}}(?!\d)", re.ASCII)


VERBATIM = Notation(missing=frozenset({""}))
"""The notation of labels and keys, of which only an empty text is missing."""
USUAL = Notation()
PYTHON = Notation(missing=frozenset())
"""The notation of events in Python, whose texts are only texts."""
EVERY = "*"
"""Stands for all columns in `Notations.missing`."""


@dataclass(frozen=True)
class Notations:
    """How the values of all columns are written.

    Args:
        missing: texts and numbers that stand for a missing value, in addition to the usual ones, by column or for
            `EVERY` column; none at all: not even the usual ones do.
        thousands: separates thousands.
        units: factors of the texts before and after numbers.
        times: formats of times, by column.
        zone: the time zone of times that name none.
        decimal: the decimal mark where everything is a text.
    """

    missing: Mapping[str, tuple[str | float, ...]] = field(default_factory=dict)
    thousands: str = ""
    units: Mapping[str, float] = field(default_factory=dict)
    times: Mapping[str, str] = field(default_factory=dict)
    zone: str = ""
    decimal: str = ""

    def of(self, name: str) -> Notation:
        """Return the notation of a column of features, a target that is a number or a weight."""
        return self._known.get(name) or self._known[EVERY]

    @cached_property
    def _known(self) -> dict[str, Notation]:
        return {name: self._notation(name, MISSING) for name in {EVERY, *self.missing, *self.times}}

    def of_label(self, name: str) -> Notation:
        """Return the notation of a classifier's target, whose missing values are only those that settings name."""
        return self._notation(name, VERBATIM.missing)

    def _notation(self, name: str, usual: frozenset[str]) -> Notation:
        every, own = self.missing.get(EVERY), self.missing.get(name)
        markers = [] if own == () else [*(every or ()), *(own or ())]
        texts = {tidied(marker) if isinstance(marker, str) else as_text(marker) for marker in markers}
        texts |= {""} if () in (every, own) else usual
        return Notation(
            frozenset(texts),
            frozenset(float(text) for text in texts if NUMBER.fullmatch(text)),
            self.thousands,
            tuple(self.units.items()),
            self.times.get(name, ISO),
            self.zone,
            self.decimal,
        )
