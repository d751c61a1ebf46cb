"""Write what is derived: default.toml's comments, docs/reference, lists of pages, Kubernetes' alerts, what wheels list.

    python scripts/reference.py

A test compares the files with what this would write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from inspect import signature
from pathlib import Path
from textwrap import indent
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import click
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from scripts.bill_of_materials import bill_of_materials
from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, commands, settings
from streammoe.daemon.metrics import CATALOGUE
from streammoe.fields import facts_of, summary_of
from streammoe.options import CHOICES, MODELS, FeatureOptions
from streammoe.scaleout.shard_metrics import CATALOGUE as OF_REDUCE
from streammoe.scaleout.shard_metrics import OF_FOLLOWERS
from streammoe.secrets import Secret
from streammoe.serving.server import OF_SERVING
from streammoe.settings import change_policy
from streammoe_connectors.files.settings import FileSettings

ROOT = Path(__file__).parents[1]
DEFAULTS = ROOT / "config" / "default.toml"
REFERENCE = ROOT / "docs" / "reference"
SECTIONS: Mapping[str, type[BaseModel]] = {
    "source": FileSettings,
    "schema": settings.SchemaSettings,
    "labels": settings.Labels,
    "checkpoint": settings.CheckpointSettings,
    "metrics": settings.MetricsSettings,
    "serve": settings.ServeSettings,
    "predictions": settings.PredictionFileSettings,
    "guard": settings.GuardSettings,
    "global": settings.Global,
    "dead_letters": settings.DeadLetterFileSettings,
}
"""Of one kind each; those of a model are `MODELS`."""
ESTIMATORS = (MoERegressor, MoEMultiTargetRegressor, MoEClassifier)
SETTING = re.compile(r"(?P<left>(# )?(?P<name>\w+) = .*?\S)\s+# (?P<comment>.*)")
CHALLENGER = """\
[A second model](../comparing.md#next-to-a-daemon). It has the settings of `[model]`, those that are not given with the
values there. Each may change at a restart, when the challenger begins anew, and what may change at any time also does.
"""
CHANGES = {
    "reload": "at any time (SIGHUP)",
    "restart": "at a restart",
    "rise": "at a restart, upwards only",
    "never": "no",
}


def files() -> dict[Path, str]:
    """What each file is to hold."""
    return {
        DEFAULTS: default_file(DEFAULTS.read_text(encoding="utf-8")),
        REFERENCE / "options.md": options_page(),
        REFERENCE / "settings.md": settings_page(),
        REFERENCE / "metrics.md": metrics_page(),
        REFERENCE / "commands.md": commands_page(),
        ROOT / "docs" / "README.md": index_page(),
        ROOT / "docs" / "adr" / "README.md": decisions_page(),
        ROOT / "config" / "kubernetes" / "monitoring" / "rules.yaml": rules(),
        ROOT / "streammoe.cdx.json": bill_of_materials(ROOT / "pyproject.toml"),
    }


# -- config/default.toml -----------------------------------------------------------------------------------------------


def default_file(text: str) -> str:
    """The file with its options of models written again, and the comments of settings that have a description."""
    before, _, rest = text.partition("[model]\n")
    after = rest[rest.index("\n[model.schedule]\n") :]
    whole = "\n".join([f"{before}[model]", *model_lines(), after])
    section, lines = "", []
    for line in whole.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        found = SETTING.fullmatch(line)
        field = SECTIONS[section].model_fields.get(found["name"]) if found and section in SECTIONS else None
        lines.append(with_comment(found["left"], field.description) if found and field and field.description else line)
    return "\n".join(lines) + "\n"


def model_lines() -> Iterator[str]:
    """The options of a regressor with their defaults; those that only others have, as comments."""
    yield "# A name or a number stands for a table with defaults: docs/reference/settings.md says what they hold."
    regressor = MODELS["regressor"].model_fields
    others = {name: field for options in MODELS.values() for name, field in options.model_fields.items()}
    for name, field in {**regressor, **others, **regressor}.items():
        if name == "schedule":  # a table of its own
            continue
        sample = facts_of(field).sample
        is_comment = name not in regressor or sample is not None
        value = toml(default_word(name, field) if sample is None else sample)
        yield with_comment(f"{'# ' if is_comment else ''}{name} = {value}", str(field.description))


def default_word(name: str, field: FieldInfo) -> Any:
    """The default of an option, or the word that stands for it in settings."""
    choice = CHOICES.get(name)
    if choice is None:
        return field.default
    table = choice.table(field.default)
    return choice.none if table is None else table.get("kind") if isinstance(table, dict) else table


def with_comment(left: str, description: str) -> str:
    """A line with its comment, which is no sentence there."""
    text = description.removesuffix(".")
    first = text[0].lower() if text[1].islower() or text[1] == " " else text[0]
    return f"{left:<27} # {first}{text[1:]}"


def toml(value: object) -> str:
    """A value as TOML."""
    if isinstance(value, float):
        return f"{value:g}".replace("e+0", "e") if value >= 1e6 else repr(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000:
        return f"{value:_}"
    return json.dumps(list(value) if isinstance(value, tuple) else value)


# -- docs/reference ----------------------------------------------------------------------------------------------------

GENERATED = "<!-- Written by `make reference`. -->\n"
HEAD = "<!-- Written by `make reference`; change streammoe/options.py or streammoe/settings/__init__.py instead. -->\n"


def options_page() -> str:
    """Every argument of the estimators."""
    fields: dict[str, dict[type, FieldInfo]] = {}
    for estimator in ESTIMATORS:
        known = {**estimator.options_type.model_fields, **FeatureOptions.model_fields}
        for name in signature(estimator).parameters:
            fields.setdefault(name, {})[estimator] = known[name]
    parts = [
        HEAD,
        "# Arguments of the estimators\n",
        "The [settings](settings.md) of `[model]` have the same names, types, ranges and meanings.\n",
    ]
    for name, of in fields.items():
        field = next(iter(of.values()))
        only = "" if len(of) == len(ESTIMATORS) else f" · {', '.join(f'`{each.__name__}`' for each in of)}"
        defaults = {each.__name__: signature(each).parameters[name].default for each in of}
        said = f"`{next(iter(defaults.values()))!r}`"
        if len(set(defaults.values())) > 1:
            said = ", ".join(f"`{value!r}` of `{estimator}`" for estimator, value in defaults.items())
        parts.append(f"## `{name}`\n")
        parts.append(f"{' '.join([str(field.description), facts_of(field).more]).strip()}\n")
        parts.append(f"{type_of(field, name)} · default {said}{only}\n")
        if name in CHOICES:
            parts += ["\n".join(object_lines(kind)) for kind in CHOICES[name].kinds.values()]
            parts.append("")
    return "\n".join(parts)


def settings_page() -> str:
    """Every setting of a daemon but those of Kafka."""
    parts = [
        HEAD,
        "# Settings\n",
        (
            "By section. *Changes* says whether a setting may change once there is a checkpoint. Kafka's are in "
            "[Kafka](../kafka.md#settings).\n"
        ),
    ]
    comments = dict(documented_settings())
    for section, tables in tables_of_sections():
        fields: dict[str, list[tuple[type[BaseModel], FieldInfo]]] = {}
        for table in tables:
            for name, field in table.model_fields.items():
                fields.setdefault(name, []).append((table, field))
        parts.append(f"## `[{section}]`\n")
        parts.append("| setting | type | default | changes | meaning |\n|---|---|---|---|---|")
        for name, of in fields.items():
            table, field = of[0]
            types = " or ".join(dict.fromkeys(type_of(each, name) for _, each in of))
            changes = CHANGES[change_policy(section, table, name)]
            meaning = field.description or sentence(comments.get(f"{section}.{name}", ""))
            parts.append(table_row([f"`{name}`", types, default_of(field, name), changes, meaning]))
        parts.append("")
        if section == "model":
            parts += [*tables_of_options(), "## `[challenger]`\n", CHALLENGER]
    return "\n".join(parts)


class Value(NamedTuple):
    """A value of an object that an option may be."""

    name: str
    type: str
    default: str
    meaning: str


def values_of(kind: Any) -> Iterator[Value]:
    """Each value of an object."""
    for name, field in kind.__pydantic_fields__.items():
        said = "required" if field.is_required() else "" if field.default is None else f"`{toml(field.default)}`"
        yield Value(name, type_of(field), said, field.description)


def object_lines(kind: Any) -> Iterator[str]:
    """An object that an option may be, as a list in Markdown."""
    values = list(values_of(kind))
    yield f"- `{kind.__name__}({', '.join(value.name for value in values)})`: {summary_of(kind)}"
    for value in values:
        default = f" Default {value.default}." if value.default.startswith("`") else ""
        yield f"    - `{value.name}`: {value.type}.{default} {value.meaning}".rstrip()


def tables_of_options() -> list[str]:
    """What the tables of a model's options hold."""
    parts = [
        (
            "An option of a model that has several kinds, or values of its own, may be a table, such as\n"
            '`expert = { kind = "student_t", df = 5.0 }`. A name or a number stands for a table with defaults.\n'
        ),
        "| option | kind | value | type | default | meaning |\n|---|---|---|---|---|---|",
    ]
    for option, choice in CHOICES.items():
        for word, kind in choice.kinds.items():
            before = [f"`{option}`", f"`{word}`" if word else ""]
            parts += [table_row([*before, f"`{value.name}`", *value[1:]]) for value in values_of(kind)]
    return [*parts, ""]


def table_row(cells: Iterable[str]) -> str:
    """A row of a table in Markdown, whose dialects read a bar in backticks in several ways."""
    escaped = [re.sub(r"`([^`]*\|[^`]*)`", r"<code>\1</code>", cell).replace("|", "&#124;") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def tables_of_sections() -> Iterator[tuple[str, list[type[BaseModel]]]]:
    """The sections in the order of config/default.toml."""
    for section in ("source", "schema", "labels"):
        yield section, [SECTIONS[section]]
    yield "model", list(MODELS.values())
    for section in list(SECTIONS)[3:]:
        yield section, [SECTIONS[section]]


def documented_settings() -> Iterator[tuple[str, str]]:
    """Each setting of config/default.toml with its comment."""
    section = ""
    for line in DEFAULTS.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif found := SETTING.fullmatch(line):
            yield f"{section}.{found['name']}", found["comment"]


def sentence(comment: str) -> str:
    """A comment as a sentence."""
    return f"{comment[0].upper()}{comment[1:]}." if comment else ""


def default_of(field: FieldInfo, name: str) -> str:
    """The default of a setting."""
    if field.is_required():
        return "required"
    word = default_word(name, field)
    return "" if word is None else f"`{toml(word)}`"


def type_of(field: FieldInfo, name: str = "") -> str:
    """Type and range of a value, in words."""
    if name in CHOICES:
        return f"{CHOICES[name].words.replace(chr(39), '`')}"
    return type_in(field.annotation, field.metadata)


def type_in(annotation: Any, metadata: Any = ()) -> str:
    """What an annotation allows, in words."""
    return " or ".join(dict.fromkeys(kinds(annotation, metadata)))


def kinds(annotation: Any, metadata: Any = ()) -> Iterator[str]:
    """Each kind of value that an annotation allows."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        found = [each for field in more if isinstance(field, FieldInfo) for each in field.metadata]
        yield from kinds(inner, [*more, *found])
    elif origin in {Union, UnionType}:
        for each in get_args(annotation):
            yield from kinds(each, metadata)
    elif origin is Literal:
        yield from (f"`{toml(value)}`" for value in get_args(annotation))
    elif origin is tuple or origin is list:
        yield "list"
    elif origin is dict:
        yield "table"
    elif annotation in {int, float}:
        yield f"{'whole number' if annotation is int else 'number'}{range_of(metadata)}"
    elif annotation is Secret:
        yield from ("text", "table")
    elif annotation is bool:
        yield "`true` or `false`"
    elif annotation is not NoneType:
        yield "text"


def range_of(metadata: Any) -> str:
    """The range of a number, in words."""
    words = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}
    ends = [(word, getattr(each, name, None)) for name, word in words.items() for each in metadata]
    return "".join(f" {word} {in_words(end)}" for word, end in ends if end is not None)


def in_words(number: float) -> str:
    """A number that is short however large it is."""
    return (
        f"2^{int(number).bit_length()} - 1" if number > 10**15 else f"{number:,g}" if number < 1 else f"{number:,.0f}"
    )


# -- Metrics and commands ----------------------------------------------------------------------------------------------


def metrics_page() -> str:
    """Every metric with its type and labels."""
    rows = [
        f"| `{name}` | {metric.kind.__name__.lower()} | {', '.join(f'`{label}`' for label in metric.labels)} "
        f"| {metric.help.replace('|', '&#124;')} |"
        for name, metric in {**CATALOGUE, **OF_SERVING, **OF_FOLLOWERS, **OF_REDUCE}.items()
    ]
    head = [GENERATED, "# Metrics", "", "What each says, and what to do about it: [metrics](../metrics.md).", ""]
    return "\n".join([*head, "| metric | type | labels | help |", "|---|---|---|---|", *rows, ""])


def commands_page() -> str:
    """The arguments and options of every command."""
    context = click.Context(commands.main)
    parts = [GENERATED, "# Commands", "", "`streammoe COMMAND --help` says the same, with examples.", ""]
    for name in commands.main.list_commands(context):
        command: Any = commands.main.get_command(context, name)
        arguments = [one.human_readable_name for one in command.params if isinstance(one, click.Argument)]
        parts += [f"## {name}", "", f"`{' '.join(['streammoe', name, '[OPTIONS]', *arguments])}`", ""]
        parts += [" ".join(text.split()) + "\n" for text in str(command.help).partition("\b")[0].strip().split("\n\n")]
        options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
        rows = [f"| `{'`, `'.join([*one.opts, *one.secondary_opts])}` | {one.help or ''} |" for one in options]
        parts += ["| option | |", "|---|---|", *rows, ""]
    return "\n".join(parts)


# -- Lists of pages ----------------------------------------------------------------------------------------------------


class Page(NamedTuple):
    """A page of the site."""

    section: str
    title: str
    path: str
    """In the repository."""
    heading: str


def pages() -> Iterator[Page]:
    """Each page in the order of mkdocs.yml."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")

    def within(nav: Any, section: str) -> Iterator[Page]:
        for entry in nav:
            for title, inner in entry.items():
                if isinstance(inner, str):
                    yield Page(section, title, inner, heading_of(ROOT / inner))
                else:
                    yield from within(inner, f"{section}: {title}" if section else title)

    yield from within(yaml.safe_load(text[text.index("\nnav:\n") :])["nav"], "")


def heading_of(page: Path) -> str:
    """The first heading of a page."""
    return next(line[2:] for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("# "))


def index_page() -> str:
    """Every page of the site with the question that it answers."""
    parts = [GENERATED, "# What do you want to know?"]
    section = ""
    for page in pages():
        if page.section != section:
            section = page.section
            parts += ["", f"## {section}", "", "| page | |", "|---|---|"]
        parts.append(f"| [{page.title}]({link_from_docs(page.path)}) | {page.heading} |")
    return "\n".join([*parts, ""])


def link_from_docs(path: str) -> str:
    """A link to a page from a page in docs/."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"../{path}"


def decisions_page() -> str:
    """Every decision by its title."""
    found = [(path.name, heading_of(path)) for path in sorted((ROOT / "docs" / "adr").glob("0*.md"))]
    rows = [f"- [{heading}]({name})" for name, heading in found]
    return "\n".join(
        [GENERATED, "# Why is it so?", "", "Each says what was decided, why, and what follows.", "", *rows, ""]
    )


# -- Alerts ------------------------------------------------------------------------------------------------------------


def rules() -> str:
    """The alerts as an object of the Prometheus Operator."""
    alerts = (ROOT / "config" / "prometheus" / "alerts.yml").read_text(encoding="utf-8")
    return f"""\
# Written by `make reference` from config/prometheus/alerts.yml.

apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: streammoe
spec:
{indent(alerts[alerts.index("groups:") :], "  ")}"""


if __name__ == "__main__":
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
