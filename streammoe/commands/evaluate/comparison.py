"""Several groups of settings on the same file, each in a process of its own."""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import re
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import active_children, get_context, parent_process

from streammoe.commands.evaluate.prequential import Evaluation, evaluate, table, to_values
from streammoe.daemon.loop import ProgressListener
from streammoe.daemon.signals import StopFlag
from streammoe.errors import ConfigError, StreammoeError
from streammoe.settings import Settings

LOOK_SECONDS = 0.2
"""Time between two looks at which processes are done, and whether to stop."""


def groups_of(vs: Sequence[str], grid: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the groups of settings that options ask for, in their order, each as flags over those that all have.

    >>> groups_of(["model.n_experts=2 model.drift=off"], [])
    [(), ('model.n_experts=2', 'model.drift=off')]
    >>> groups_of([], ["model.n_experts=1,2", "model.expert={kind='student_t',df=5}"])
    [('model.n_experts=1', "model.expert={kind='student_t',df=5}"), ('model.n_experts=2', ...)]
    """
    axes = []
    for axis in grid:
        name, _, values = axis.partition("=")
        found = re.findall(r"""(?:\[[^]]*\]|\{[^}]*\}|"[^"]*"|'[^']*'|[^,])+""", values) or [""]
        axes.append([f"{name}={value.strip()}" for value in found])
    return [*itertools.product(*axes), *(tuple(re.split(r"\s+(?=\w+\.[^\s={]+=)", each.strip())) for each in vs)]


def compare(
    groups: Sequence[Settings], *, source_name: str, jobs: int, on_progress: ProgressListener, stop: StopFlag
) -> list[Evaluation]:
    """Evaluate each group, at most `jobs` at once, and return the results in the same order; none if stopped.

    Raises:
        ConfigError: their scores cannot be compared.
        StreammoeError: one of them failed; the others have ended.
    """
    if len({(each.model.kind, each.schema.targets) for each in groups}) > 1:
        raise ConfigError("--vs, --grid: must leave model.kind and schema.target as they are, to compare scores")
    context = get_context("spawn")  # threads of a parent that forks may hold locks for ever
    others = active_children()
    with ProcessPoolExecutor(min(jobs, len(groups)), context, _begin) as pool:
        # What they inherit, since terminals send Ctrl-C to all; this process gets it a moment later.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            runs = [pool.submit(evaluate, settings, source_name=source_name) for settings in groups]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            waiting = set(runs)
            while waiting and not stop.requested:
                ended, waiting = wait(waiting, LOOK_SECONDS)
                on_progress((len(runs) - len(waiting), len(runs)))
                for run in ended:
                    run.result()
            return [] if waiting else [run.result() for run in runs]
        except BrokenProcessPool as error:
            raise StreammoeError("a process was ended, perhaps for lack of memory; lower --jobs") from error
        finally:
            for process in set(active_children()).difference(others):
                process.terminate()


def _begin() -> None:
    """Set up a process, which ends with its parent."""
    logging.disable(logging.WARNING)  # the same is said of each group
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
    os._exit(1)


def comparison(groups: Sequence[tuple[str, ...]], evaluations: Sequence[Evaluation], *, as_json: bool) -> str:
    """Format the scores of all groups, the lowest log-loss first, as a table or as one JSON object."""
    found = [(group, each, each.rows[0]) for group, each in zip(groups, evaluations, strict=True)]
    found.sort(key=lambda run: math.inf if run[2].log_loss is None else run[2].log_loss)
    if as_json:
        return json.dumps({"runs": [{"given": group, **to_values(each)} for group, each, _ in found]}, allow_nan=False)
    best, rows, notes = found[0][1], [], []
    for group, each, row in found:
        rows.append(row._replace(name=" ".join(group) or "as given"))
        if (n := each.outcomes["learned"]) != best.outcomes["learned"]:
            notes.append(f"{rows[-1].name}: scored {n:,} events, so its scores are of others")
    return "\n".join([table(replace(best, rows=[*rows, best.rows[-1]])), *notes])
