"""Show what a checkpoint holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from streammoe.checked import array_of, restoring
from streammoe.console import logged, plain
from streammoe.daemon.challenger import parts_of
from streammoe.daemon.checkpoints import learned_digest
from streammoe.daemon.status import age_seconds
from streammoe.engine.portfolio import OF_MIXTURE
from streammoe.errors import CheckpointError, ConfigError
from streammoe.estimators import ESTIMATORS, model_of
from streammoe.options import as_arguments
from streammoe.persistence import Checkpoint, CheckpointStore, generation_of, read_checkpoint
from streammoe.pipeline.scores import PrequentialScores, saved_scores
from streammoe.serving.figures import experts_of
from streammoe.text import counted, printable

LEAST_SHOWN = 0.05
"""Share in what is predicted from which on a single expert is shown."""
MOST_SHOWN = 5
"""Number of coefficients of an expert that are shown, and of its outputs."""


def inspect_path(path: Path) -> dict[str, Any]:
    """Summarize a checkpoint file, or the newest sound one of a folder, as JSON values. Takes no lock.

    For a folder the summary includes ``generations``, whether each of them is sound, and ``set_aside``, the folders of
    checkpoints that are no longer used.

    Raises:
        CheckpointError: there is no checkpoint, or no sound one.
    """
    if not path.is_dir():
        return {**describe_checkpoint(path), "generations": [], "set_aside": []}
    store = CheckpointStore(path)
    generations = [_generation_entry(store, generation) for generation in store.generations()]
    if not generations:
        raise CheckpointError(
            f"{path}: there is no checkpoint in this folder; give a daemon's checkpoint.dir, or the folder of global "
            "models"
        )
    sound = [entry for entry in generations if entry["sound"]]
    if not sound:
        problems = "; ".join(entry["problem"] for entry in generations)
        raise CheckpointError(f"{path}: no checkpoint is sound: {problems}")
    return {
        **describe_checkpoint(sound[-1]["path"]),
        "generations": generations,
        "set_aside": sorted(str(folder) for folder in path.glob("set-aside-*") if folder.is_dir()),
    }


def _generation_entry(store: CheckpointStore, generation: int) -> dict[str, Any]:
    """Summarize one generation: whether it is sound, and what identifies it."""
    metadata: dict[str, Any] = {}
    problem = None
    try:
        metadata = store.load(generation).metadata
    except CheckpointError as error:
        problem = str(error)
    return {
        "generation": generation,
        "path": str(store.path(generation)),
        "sound": problem is None,
        "problem": problem,
        **{name: metadata.get(name) for name in ("created", "n", "state_digest")},
        "age_seconds": age_seconds(metadata.get("created")),
    }


def to_text(description: dict[str, Any]) -> str:
    """Format a summary for a terminal."""
    lines = []
    for name, value in description.items():
        if name == "history":
            lines.append(f"{name:14} {len(value)} entries, shown by --history")
        elif name == "generations":
            lines += [f"{name:14} {_generation(entry)}" for entry in value]
        elif name == "experts":
            for k, expert in enumerate(value):
                lines.append(f"{name:14} {_expert(k, expert)}")
                about = [f"region: {expert['region']}", *formulas(description, expert["member"], k)]
                lines += [f"{'':17} {line}" for line in about]
        elif name == "member_shares":
            lines.append(f"{'predicts':14} {shares_in_words(value)}")
        elif name == "columns":
            continue  # `features` says enough here
        elif name == "coefficients":
            lines += [
                f"{member:14} {line}"
                for member in singles_shown(description)
                for line in formulas(description, member, 0)
            ]
        elif name == "model":
            lines.append(f"{name:14} {_model(value)}")
        elif name == "challenger" and value:
            lines.append(f"{name:14} {plain({**value, 'model': _model(value['model'])})}")
        else:
            lines.append(f"{name:14} {plain(value)}")
    return "\n".join(lines)


def _model(described: Mapping[str, Any]) -> str:
    """Format the kind of a model and those of its arguments that are not the default."""
    kind: type[Any] = ESTIMATORS[described["kind"]]
    arguments = described["arguments"]
    model, usual = kind(**as_arguments(kind.options_type, arguments)), kind()

    def differs(name: str) -> bool:
        mine, default = (getattr(each.options, name, getattr(each, name, None)) for each in (model, usual))
        return bool(mine != default)

    given = {name: value for name, value in arguments.items() if differs(name)}
    return f"{kind.__name__}, {plain(given) if given else 'all arguments by default'}"


def shares_in_words(shares: Mapping[str, float]) -> str:
    """Return which members predict, the largest share first, without those that hardly do."""
    ranked = sorted(shares.items(), key=lambda each: -each[1])
    return ", ".join(f"{name} {share:.1%}" for name, share in ranked if share >= 0.001) or "-"


def singles_shown(description: Mapping[str, Any]) -> list[str]:
    """Return the single experts whose share in what is predicted is worth showing."""
    shares = description["member_shares"]
    return [name for name, share in shares.items() if share >= LEAST_SHOWN and name not in OF_MIXTURE]


def formulas(description: Mapping[str, Any], member: str, k: int) -> list[str]:
    """Return what an expert predicts, a line for each output: its intercept and its largest coefficients."""
    own: dict[Any, list[Mapping[str, Any]]] = {}
    for each in description["coefficients"]:
        if (each["member"], each["expert"]) == (member, k):
            own.setdefault(each["output"], []).append(each)
    more = [f"and {counted(len(own) - MOST_SHOWN, 'other')}, see --json"] if len(own) > MOST_SHOWN else []
    lines = []
    for output, terms in [*own.items()][:MOST_SHOWN]:
        intercept, others = terms[0], sorted(terms[1:], key=lambda each: -abs(each["effect"]))
        left = len(others) - MOST_SHOWN
        words = [
            f"{intercept['value']:.4g}",
            *map(_term, others[:MOST_SHOWN]),
            f"+ … ({left} more)" if left > 0 else "",
        ]
        name = f"log-odds of {output!s} to {description['outputs'][0]!s}" if description["are_labels"] else str(output)
        lines.append(printable(f"{name} = {' '.join(words).rstrip()}"))
    return lines + more


def _term(term: Mapping[str, Any]) -> str:
    size = f"{abs(term['value']):.4g}"
    if term["standard_error"] is not None:
        size = f"({size} ± {term['standard_error']:.2g})"
    return f"{'-' if term['value'] < 0.0 else '+'} {size} {term['feature']}"


def _expert(k: int, expert: dict[str, Any]) -> str:
    text = f"{k}  {expert['condition']}, share {expert['share']:.3g}, loss {expert['loss']:.4g}"
    if expert["nearest"] is None:
        return text
    return f"{text}, {expert['divergence']:.3g} nats from expert {expert['nearest']}"


def _generation(entry: dict[str, Any]) -> str:
    if not entry["sound"]:
        return printable(f"{entry['generation']}  rejected: {entry['problem']}")
    return printable(
        f"{entry['generation']}  sound, n {plain(entry['n'])}, created {plain(entry['created'])}, "
        f"{plain(entry['state_digest'])}"
    )


def details(entry: Mapping[str, Any]) -> str:
    """Return what else an entry of the history says than when what happened to which checkpoints, without blanks."""
    shown = {name: entry[name] for name in entry if name not in ("time", "event", "n", "before", "after")}
    return plain({name: value for name, value in shown.items() if value not in ("", None, {})})


def _entry_of_history(entry: Mapping[str, Any]) -> str:
    """Format an entry: when, after how many events, what, beginnings of digests, and what else there is to say."""
    digests = " to ".join((entry[name] or "none")[:12] for name in ("before", "after"))
    return printable(f"{entry['time']}  n {entry['n']:<10,} {entry['event']:10} {digests}; {details(entry)}")


def _compared(own: Checkpoint, of_champion: Checkpoint) -> dict[str, Any]:
    """Summarize a challenger."""
    kept = {name: own.metadata[name] for name in ("model", "n", "missed")}
    scores = {"scores": _summary(own), "champion_scores": _summary(of_champion)}
    return {**kept, "state_digest": learned_digest(own.arrays), **scores}


def _summary(checkpoint: Checkpoint) -> Mapping[str, float | None]:
    """Return the running means that a daemon has saved with its model; empty for a model saved from Python."""
    scores = saved_scores(checkpoint)
    return {} if scores is None else scores.summary()


def describe_checkpoint(path: str | Path) -> dict[str, Any]:
    """Summarize a checkpoint as JSON values.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    checkpoint = read_checkpoint(path)
    metadata = checkpoint.metadata
    model = model_of(checkpoint, path)
    coefficients = model.coefficients()
    has_labels = any(name.startswith("labels.") for name in checkpoint.arrays)
    with restoring(path):
        challenger = parts_of(checkpoint)
        pending = int((~array_of(checkpoint.arrays, "labels.refused", "bool", (None,))).sum()) if has_labels else 0
        scores = saved_scores(checkpoint)
        names = list(map(str, model.learner.targets.lagged_names))
        intervals = scores.of_intervals(names) if isinstance(scores, PrequentialScores) else []
        compared = {} if challenger is None else _compared(*challenger)
    return {
        "generation": generation_of(Path(path)),
        "age_seconds": age_seconds(metadata.get("created")),
        "path": str(path),
        "n": model.n,
        "positions": metadata.get("positions", []),
        "model": metadata["model"],
        "version": metadata.get("version"),
        "state_digest": learned_digest(checkpoint.arrays),
        "created": metadata.get("created"),
        "counters": metadata.get("counters", {}),
        "global": metadata.get("global", {}),
        "history": metadata.get("history", []),
        "scores": {} if scores is None else scores.summary(),
        "intervals": intervals,
        "challenger": compared,
        "pending": pending,
        "features": model.feature_names,
        "columns": model.columns(),
        "outputs": model.output_names,
        "warming_up": model.is_warming_up,
        "outliers": model.n_outliers,
        "drifts": model.drifts,
        "last_drift": model.last_drift and model.last_drift._asdict(),
        "are_labels": model.is_classifier,
        "member_weights": model.member_weights,
        "member_shares": model.member_shares,
        "expert_masses": [] if model.is_warming_up else model.masses.tolist(),
        "experts": experts_of(model, coefficients),
        "coefficients": [
            {name: None if value != value else value for name, value in each._asdict().items()}  # noqa: PLR0124 - NaN
            for each in coefficients
        ],
    }


def _draw(path: str, picture: Path) -> None:
    """Draw a model into a file; raise `ConfigError` if there is nothing to draw, or the file cannot be written."""
    figure = model_of(read_checkpoint(path), path).plot()
    try:
        figure.savefig(picture)
    except (OSError, ValueError) as error:  # ValueError: a format that matplotlib does not know
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"--plot {picture}: {reason}; give a file such as model.png in a folder that exists"
        ) from None


@click.command("inspect")
@click.argument("path", metavar="DIR_OR_FILE", type=click.Path(path_type=Path))
@click.option("--history", is_flag=True, help="Show only what has changed the model or how it learns, oldest first.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--plot",
    "picture",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Draw who predicts, and by what, into this file, such as model.png or model.svg.",
)
@logged
def command(path: Path, history: bool, as_json: bool, picture: Path | None) -> None:
    """Show what a checkpoint file, or the newest sound checkpoint of a folder, holds, and the state of the others.

    \b
    Example:
      streammoe inspect state --json
    """
    description = inspect_path(path)
    if picture is not None:
        _draw(description["path"], picture)
    if as_json:
        click.echo(json.dumps(description["history"] if history else description, indent=2))
    else:
        click.echo("\n".join(map(_entry_of_history, description["history"])) if history else to_text(description))
