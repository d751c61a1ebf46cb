"""The faults, each of a kind that a good programmer makes and a reviewer may overlook.

A fault is located in the code by its snippet, which occurs there once, wherever the file has moved; if possible it is
one line, without names that may change. Add one wherever a bug was fixed: it shows that its test would find it again.
"""

from __future__ import annotations

from typing import NamedTuple

AREAS = {
    "steps": "test_iterates.py test_drift_oracle.py contracts/test_families.py",
    "categorical": "test_iterates.py test_kernels.py",
    "heavy tails": "test_iterates.py test_kernels.py",
    "softmax": "test_kernels.py test_sharp.py test_iterates.py",
    "batch fit": "test_batch_methods.py test_settled.py engine/test_batch.py unit/test_batch.py",
    "fits": "test_fits.py test_start.py test_refit.py test_search.py test_spectral.py invariants/*.py",
    "choice": "test_model_selection.py test_living.py test_regressor.py",
    "expert life": "test_diagnostics.py test_expert_life_oracle.py test_living.py",
    "drift": "engine/test_drift.py test_drift_oracle.py test_schedules.py test_drifting_daemon.py",
    "schedules": "test_schedules.py",
    "single events": "test_one_event.py test_undo.py invariants/*.py",
    "compiling": "kernels/test_compile.py",
    "portfolio": "engine/test_portfolio.py oracle/test_portfolio.py",
    "held": "test_held.py test_tails.py columns/test_*.py invariants/*.py",
    "refits": "test_refit.py test_recent.py invariants/*.py",
    "lags": "test_lags.py test_label_join.py test_joined_labels.py invariants/*.py",
    "identifiers": "test_level_means.py",
    "encoder": "columns/test_*.py test_regressor.py invariants/*.py",
    "outputs": "unit/test_outputs.py",
    "columns": "columns/test_kinds.py",
    "estimators": "test_regressor.py test_classifier.py test_predicting.py invariants/*.py",
    "poison": "test_kernels.py invariants/*.py test_undo.py test_poisoned_batch.py",
    "distributions": "test_distributions.py engine/test_intervals.py",
    "persistence": (
        "persistence/test_format*.py test_lock.py test_store.py test_checked.py test_power_loss.py "
        "test_checkpoint_format.py golden/test_*.py test_options.py test_rollback.py"
    ),
    "backups": "test_backup.py test_mirror.py test_ownership.py",
    "appending": "test_append_log.py test_dead_letters.py test_power_loss.py",
    "checkpoints": "test_loop.py test_given_up_fits.py test_durability.py test_transactional_start.py",
    "pipeline": "test_pipeline.py test_predictions.py test_bad_input.py test_scores.py test_loop.py",
    "rows": "test_rows.py test_overlapped.py unit/pipeline/test_predictions.py",
    "decoders": ("decoders/test_*.py property/test_decoders.py test_notation.py test_bad_input.py"),
    "label join": "test_label_join.py test_joined_labels.py",
    "guards": "test_jump.py test_dead_letters.py test_jumping_daemon.py test_loop.py",
    "global model": "test_rivals.py test_follower.py",
    "challengers": "test_challengers.py test_challenger.py test_given_up_fits.py test_transactional_start.py",
    "scores": "test_scores.py test_metrics.py test_evaluation.py test_loop.py test_assembly.py",
    "server": "test_server*.py test_metrics.py test_health.py test_outputs.py test_loop.py test_transactional_start.py",
    "requests": "unit/serving/*.py",
    "settings": "test_settings.py test_settings_over_a_checkpoint.py test_reload.py test_assembly.py",
    "files": "connectors/files/test_*.py contracts/test_sources.py",
    "kafka": (
        "connectors/kafka/test_*.py test_transactional_start.py "
        "integration/test_kafka_source.py integration/test_kafka_sinks.py integration/test_kafka_outages.py"
    ),
    "letters": "test_letters_out.py test_rollback.py process/test_commands.py",
    "shards": "unit/scaleout/test_*.py",
    "process": "test_signals.py process/test_*.py",
}
"""Of each area the tests to ask first, as globs anywhere below tests/, in the order of asking."""


class Fault(NamedTuple):
    """A change for the worse."""

    name: str
    """Its name in `found.txt`."""
    old: str
    """What it replaces."""
    new: str


FAULTS = {
    "steps": [
        Fault("gate-push-sign", "push[k] = shares[k] - tau[k]\n    step", "push[k] = tau[k] - shares[k]\n    step"),
        Fault("gate-gram-not-decayed", "state.gate_gram[i, j] *= decay", "state.gate_gram[i, j] *= 1.0"),
        Fault("gate-prior-not-topped-up", "= missing * state.prior_gate_gram[i]", "= 0.0 * state.prior_gate_gram[i]"),
        Fault("expert-inverse-stale", "expert_inverses[k], np.empty((p,", "expert_inverses[k].copy(), np.empty((p,"),
        Fault("prior-target-ignored", "(state.prior_experts[q, j] - theta[j])", "(0.0 - theta[j])"),
        Fault("prior-weight-not-decayed", "state.prior_weight[0] *= 1.0 - gamma", "state.prior_weight[0] *= 1.0"),
        Fault("averaging-off-by-one", "options.averaging - 1.0)", "options.averaging)"),
        Fault("limit-without-restart", "ALWAYS_ALLOWED / max(n - origin, 1)", "ALWAYS_ALLOWED / max(n, 1)"),
        Fault("limit-by-mean-expert", "least = min(least, masses[k])", "least = max(least, masses[k])"),
        Fault("average-never-forgets", "weight = max(weight, gamma)", "weight = min(weight, gamma)"),
        Fault("top-k-keeps-one-more", "for _ in range(top_k):", "for _ in range(top_k + 1):"),
        Fault("top-k-not-renormalised", "tau[k] / -total if tau[k] < 0.0", "-tau[k] if tau[k] < 0.0"),
    ],
    "categorical": [
        Fault("unlikely-class-loss", "return -largest - math.log(total)", "return -largest"),
    ],
    "heavy tails": [
        Fault("student-t-without-outputs", "return (shape[0] + Q) / (shape[0]", "return (shape[0] + 1) / (shape[0]"),
    ],
    "softmax": [
        Fault("softmax-step-before-update", "size * shrink * curvature[0] * (push", "size * curvature[0] * (push"),
        Fault("softmax-not-shifted", "math.exp(values[k] - largest)", "math.exp(values[k])"),
        Fault("adaptive-bound-halved", "return 2.0 * apart / math.log", "return apart / math.log"),
        Fault("sharp-step-unlimited", "if reach <= limit:", "if reach <= 1e9 * limit:"),
        Fault("sharp-fit-not-shortened", "if objective(gate) >= least:", "if objective(gate) >= -np.inf:"),
        Fault("paper-bound-wrong", "return 4.0 / 3.0, 2.0 / free", "return 4.0 / 3.0, 1.0 / free"),
        Fault("inverse-without-scaling", "value = out[i, j] * scale[i] * scale[j]", "value = out[i, j] * scale[i]"),
    ],
    "batch fit": [
        Fault("em-prior-sign", "self.prior, self.options) - penalty", "self.prior, self.options) + penalty"),
        Fault("settled-mass-without-prior", "masses=(masses + prior.strength / K) / ", "masses=masses / "),
        Fault("descent-keeps-last", "best = max(best, point, key=lambda each: each.objective)", "best = point"),
    ],
    "fits": [
        Fault("search-keeps-worst", "[fit.theta for fit in fits[:kept]]", "[fit.theta for fit in fits[-kept:]]"),
        Fault("degenerate-fit-taken", ".min() < theta.experts.shape[2] + 1)", ".min() < 0.0)"),
        Fault("fit-forgets-events-since", "weights = rows_of(context, n - plan.n)", "weights = rows_of(context, 0)"),
        Fault("fit-of-the-past-goes-on", "self.fit = None  # it would learn", "pass  # it would learn"),
        Fault("rows-of-the-past-fitted", "n_rows = max(len(rows.X), 1)", "n_rows = max(n_rows, 1)"),
        Fault("fit-scaled-by-what-came-since", "encoder.restore_coordinates(", "encoder.copy().restore_coordinates("),
        Fault("scales-move-for-ever", "self.is_settled = self.is_settled or", "self.is_settled = self.is_settled and"),
        Fault("rescaled-without-offset", "found[..., 0] += (slopes *", "found[..., 0] -= (slopes *"),
        Fault("first-scales-of-inputs-endless", "LARGEST_SCALE = 1e300", "LARGEST_SCALE = np.inf"),
    ],
    "choice": [
        Fault("choice-without-penalty", "0.5 * math.log(n) * n_parameters", "0.0 * math.log(n) * n_parameters"),
    ],
    "expert life": [
        Fault("starved-not-per-expert", "starved = shares < STARVED_BELOW / K", "starved = shares < STARVED_BELOW"),
    ],
    "drift": [
        Fault("steps-never-restart", "step: float = max(first, again)", "step: float = first"),
        Fault("drift-test-not-reset", "self._sums[:] = 0.0, 0.0, 0.0", "self._sums[:] = 0.0, 0.0, self._sums"),
        Fault("drift-restart-shifted", "again(self.seen + n - self.at", "again(self.seen + n - self.at - 1"),
    ],
    "single events": [
        Fault("doubtful-targets-count", "rules[RULE.disbelief] * weight if is_doubtful else weight", "weight"),
        Fault("arrays-that-were-replaced", "or not all(map(operator.is_, current, self._owners))", ""),
        Fault("replaced-but-not-noticed", "REPLACEMENTS.latest = object()", "pass"),
        Fault("single-events-out-of-the-sample", "context.reservoir.add_one(bound.row, target, weight)", "pass"),
        Fault("single-events-never-due", "due if phase.n >= SETTLED_AT else", "due + 1 if phase.n >= SETTLED_AT else"),
        Fault("interrupted-event-learned-again", "self._notes.drop_last()", "pass"),
        Fault("row-of-any-types", "return row if countOf(map(type, row), float) == len(row) else None", "return row"),
        Fault("infinite-row", "if total - total == 0.0:", "if values:"),
        Fault("predicted-in-place-of-learned", "if not math.isfinite(target[0, q]):", "if math.isinf(target[0, q]):"),
        Fault("lags-of-single-events-turned", "past[size - 1 - j % size,", "past[j % size,"),
        Fault("held-inputs-for-all-members", "sees_near = is_beyond and", "sees_near = m == 0 and"),
        Fault("unsound-member-goes-on", "if not _is_expert_sound(expert_of(S, j)):", "if False:"),
        Fault("outliers-not-counted", "[0] += is_outlier", "[0] += 0"),
    ],
    "compiling": [
        Fault("damaged-code-loaded", "if not self._is_whole(path):", "if self._is_whole(path) is None:"),
        Fault("damaged-index-loaded", "if is_whole else {}  # type", "  # type"),
        Fault("no-folder-no-kernel", "except RuntimeError:  # numba ", "except NotImplementedError:  # numba "),
    ],
    "schedules": [
        Fault("power-steps-off-by-one", ".pow(n + self.offset, -", ".pow(n + 1 + self.offset, -"),
    ],
    "portfolio": [
        Fault("trust-never-fades", "logs[j] *= DISCOUNT", "pass"),
        Fault("one-event-decides", "logs[j] -= min(cost, MOST + surprise[0])", "logs[j] -= cost"),
        Fault("never-surprised", "max(behind - MOST, 0.0)", "0.0"),
        Fault("trust-without-floor", "max(weights[j] / total, LEAST_WEIGHT)", "weights[j] / total"),
        Fault("trust-of-unweighted-events", "cost = count * (costs[j] - least)", "cost = costs[j] - least"),
        Fault("trust-in-means-never-fades", "logs[j] = DISCOUNT * math.log(weights[", "logs[j] = math.log(weights["),
        Fault(
            "member-comes-without-share",
            "np.insert((1.0 - share) * self.weights, at, share)",
            "np.insert(self.weights, at, share)",
        ),
        Fault(
            "late-targets-taken-for-timely", "self.is_timely = self.shown is not None and", "self.is_timely = True or"
        ),
        Fault("beside-not-learned", "if s > 0 and (counts.shape[0] > 0 or not is_next):", "if s > 0 and not is_next:"),
        Fault("products-never-rest", "idle + 1 if weight < NEGLIGIBLE else 0", "0"),
        Fault("products-back-at-once", "return n >= GROWTH * int(self.notes[1])", "return True"),
        Fault("products-sleep-through-a-drift", "            self.portfolio.begin_again()\n", "            pass\n"),
        Fault("terms-not-moved", "self.terms = expert_at[self.terms]", "self.terms = self.terms.copy()"),
        Fault("singles-forget-at-once", "max(min(first, LARGEST_STEP), least)", "max(min(1.0, LARGEST_STEP), least)"),
        Fault("calibration-is-not-served", "out[0] = loss[0] - gain", "out[0] = loss[0]"),
        Fault("chance-chooses-products", "(found > more +", "(found > -1.0 + 0.0 * more *"),
        Fault("far-errors-decide", "(ratio if ratio <= limit else", "(ratio if ratio >= 0.0 else"),
    ],
    "refits": [
        Fault("refit-after-drift-left-out", "or state.n[0] == S[A.look_at]", ""),
        Fault("constant-in-hindsight", "before, latest = Y[:n], Y[n:]", "before, latest = Y[n:], Y[n:]"),
        Fault("refit-for-nothing", "n * (best - now) > NATS_PER_PARAMETER * n_free", "n * (best - now) > 0.0"),
        Fault("refit-moves-against", "theta.experts + common", "theta.experts - common"),
        Fault("moves-never-alone", "< NATS_PER_PARAMETER * (n_free - n_moved)", "< -np.inf"),
        Fault("moves-keep-first-errors", "variances[k] *= 0.5", "variances[k] *= 1.0"),
        Fault("parameters-from-after-the-change", "reversed(self.earlier) if kept_at <= n)", "reversed(self.earlier))"),
    ],
    "lags": [
        Fault("lags-follow-slowly", "own = TARGET_PACE if is_near else INPUT_PACE", "own = INPUT_PACE"),
        Fault("lags-see-themselves", "size + np.cumsum(learned) - learned\n", "size + np.cumsum(learned)\n"),
        Fault("lags-in-wrong-order", "- np.arange(1, size + 1)]", "- np.arange(size, 0, -1)]"),
        Fault("lags-of-unlearned-events", "sources[learned]]", "sources]"),
        Fault("own-lags-overwritten", "np.where(own, X[:, :width], lags)", "lags"),
    ],
    "identifiers": [
        Fault("levels-not-shrunk", "/ (n + SHRINKAGE)", "/ max(n, 1.0)"),
        Fault("levels-keep-the-latest", "if counts[slot] < counts[found]:", "if counts[slot] > counts[found]:"),
        Fault("identifiers-weigh-twice", "weights, are_relative=True)", "weights)"),
        Fault("identifiers-cut-nowhere", "    return min(found + 1, n)\n", "    return n\n"),
        Fault("frequent-levels-have-no-columns", "if count >= least][:MOST_COLUMNS]", "if count < 0]"),
        Fault("levels-with-columns-have-no-means", "return float(codes[int(code)])", "return code"),
        Fault("levels-of-others-lost", "    for table in tables:\n", "    for table in tables[:1]:\n"),
    ],
    "held": [
        Fault("far-errors-make-a-jump", "count -= min(count, WITHIN)", "count -= 0"),
        Fault("moving-columns-jump", "elif beyond > 0.0 and (count == 0 or", "elif beyond > 0.0 and (count < 0 or"),
        Fault("errors-without-end", "is_error: bool = doubts[q] <= PATIENCE", "is_error: bool = True"),
        Fault("errors-not-forgotten", "max(doubts[q] - RELIEF, 0.0)", "doubts[q]"),
        Fault("errors-widen", "else:\n                _widen(Y[i, q]", "if True:\n                _widen(Y[i, q]"),
        Fault("predicted-rows-widen", "Y.shape[0] > 0 and not math.isnan(Y[i, 0])\n        for", "True\n        for"),
    ],
    "encoder": [
        Fault("powers-in-other-order", "len(fill) + d * N + r]", "len(fill) + r * (degree - 1) + d]"),
        Fault("missing-is-zero", "value = fill[c] if math.isnan(x) else x", "value = 0.0 if math.isnan(x) else x"),
        Fault("week-begins-on-thursday", "(WEEK, MONDAY)", "(WEEK, 0.0)"),
        Fault("naive-time-is-local", "offset = moment.utcoffset()", "offset = moment.astimezone().utcoffset()"),
        Fault("late-column-moves-powers", "[later.n_features(d + 1) + r for d", "[self.n_features(d + 1) + r for d"),
        Fault("levels-one-too-few", "len(known) <= room", "len(known) < room"),
        Fault("scale-from-clipped-only", "np.maximum(deviations, LEAST_SCALE * plain)", "deviations"),
        Fault("unknown-scale-judges", "return scale > 0.0 and size", "return size"),
        Fault("zeros-have-a-unit", "if size > 0.0:  # a zero", "if size >= 0.0:  # a zero"),
        Fault("range-judges-predictions", "ruled = learns and factor > 0.0", "ruled = factor > 0.0"),
        Fault("rejected-widens-range", "elif learns:\n            for j", "if learns:\n            for j"),
        Fault(
            "late-column-not-judged", "trial.screen(row, target)", "trial.screen(row[:, : len(self.fields)], target)"
        ),
        Fault("predictions-not-bounded", "np.minimum(np.maximum(X, self.plan.lowest), self.plan.highest)", "X.copy()"),
    ],
    "outputs": [
        Fault(
            "hard-link-is-another-file",
            "return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None",
            "return os.path.realpath(file)",
        ),
        Fault("device-replaced", "if target.exists() and not (target.is_file() or target.is_dir()):", "if False:"),
    ],
    "columns": [
        Fault("marker-is-a-category", " or plain.lower() in MISSPELLED", ""),
        Fault("empty-text-is-a-category", "plain.isspace():\n        return None", "plain.isspace():\n        pass"),
        Fault("awaited-columns-not-saved", "if self.awaited:\n            ", "if not self.fields:\n            "),
        Fault("first-value-over-a-setting", "self.given.kind(name) or kind_of(value)", "kind_of(value)"),
        Fault("type-of-categories-ignored", "isinstance(dtype, nw.Categorical | nw.Enum)", "False"),
        Fault("standard-scaler-not-noticed", "math.isclose(abs(column[at]), math.sqrt(at), rel_tol=1e-6)", "False"),
    ],
    "estimators": [
        Fault("weight-zero-learned", "Y[counts[start:] == 0.0] = np.nan", "Y[counts[start:] < 0.0] = np.nan"),
        Fault("out-of-range-learned", "used = numbers[verdicts < 0]", "used = numbers"),
    ],
    "poison": [
        Fault("undo-without-replay", "for function, arguments in since:", "for function, arguments in since[1:]:"),
        Fault("undo-forgets-drift", "detector = self.detector and self.detector.copy()", "detector = self.detector"),
        Fault("nan-prediction-sound", "if not abs(prediction[q]) <= LARGEST", "if abs(prediction[q]) > LARGEST"),
    ],
    "distributions": [
        Fault("upper-tail-not-mirrored", "if probability > 0.5:", "if probability > 2.0:"),
        Fault(
            "interval-depends-on-padding",
            "if share <= least:  # false for NaN",
            "if share < 0.0:",
        ),
        Fault("interval-ends-early", "(LAST_STEP if is_good else FINEST)", "(1e-3 if is_good else FINEST)"),
    ],
    "persistence": [
        Fault("file-not-synced", "file.flush()\n            os.fsync(file.fileno())", "file.flush()"),
        Fault("folder-not-synced", "        raise\n    sync_folder(target.parent)", "        raise"),
        Fault("new-folder-not-synced", "missing:\n        sync_folder(path.parent)", "missing:\n        path.stat()"),
        Fault("digest-without-shape", "[name, array.dtype.name, *array.shape]", "[name, array.dtype.name]"),
        Fault("digest-not-verified", "sound = _pack(arrays, text) == data", "sound = bool(_pack(arrays, text))"),
        Fault("bytes-after-the-end", "_pack(arrays, text) == data", "data.startswith(_pack(arrays, text))"),
        Fault("newer-format-read", "if number != FORMAT:", "if number < FORMAT:"),
        Fault("prior-weight-at-most-1", "least=0.0, most=MAX_PRIOR_STRENGTH)", "least=0.0, most=1.0)"),
        Fault("retention-one-too-many", "[-self.keep :]", "[-self.keep - 1 :]"),
        Fault("damaged-push-out-sound", "if generation not in self._unsound]", "]"),
        Fault("oldest-set-aside-last", "for generation in generations:\n", "for generation in generations[::-1]:\n"),
        Fault("lock-shared", "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB"),
        Fault(
            "removed-lock-trusted",
            "if path.exists() and os.path.samestat(held, path.stat()):",
            "if os.fstat(self._descriptor):",
        ),
        Fault("restored-nan-accepted", "and not np.isfinite(array).all():", "and np.isinf(array).any():"),
    ],
    "backups": [
        Fault("backup-not-read-back", "if self.read(name) != data:", "if not self.read(name):"),
        Fault("backup-link-followed", "Path(path).lstat()", "Path(path).stat()"),
        Fault("backup-of-invisible-predictions", "and found[0] > store.confirmed:", "and found[0] < 0:"),
        Fault("backup-by-generation", "if known != generation or", "if known < generation and"),
        Fault("restored-keeps-its-name", '.{uuid.uuid4().hex[:8]}"}', '"}'),
    ],
    "appending": [
        Fault("half-line-stays", "self._file.truncate(whole)", "self._file.tell()"),
        Fault("letters-not-synced", "            os.fsync(self._file.fileno())", "            self._file.fileno()"),
    ],
    "checkpoints": [
        Fault("source-told-before-durable", "._generation = self.", "._commit()\n        self._generation = self."),
        Fault(
            "confirmed-before-committed",
            "        if self._outputs.commit(position, self._generation):\n",
            "        if self._outputs.transactional:\n            self._store.confirm(self._generation)\n"
            "        if self._outputs.commit(position, self._generation):\n",
        ),
        Fault("own-confirmation-ignored", "seen = max(store.confirmed, recovered or 0)", "seen = recovered or 0"),
        Fault(
            "position-before-learning",
            "processed = state.process(batch)\n",
            "state.position = batch.end\n        processed = state.process(batch)\n",
        ),
        Fault("letters-not-flushed-before-state", "        self._outputs.flush()\n        jumps", "        jumps"),
        Fault("saving-not-tried-again", "if left <= 0 or self.stop.requested:", "if True:"),
    ],
    "pipeline": [
        Fault("predicted-counted-twice", "for each in used) - len(losses)", "for each in used)"),
        Fault("weight-ignored", "weights[given] = good[given, -1]", "weights[given] = 1.0"),
        Fault("row-version-of-after", "n + np.cumsum(learned) - learned", "n + np.cumsum(learned)"),
        Fault("letters-in-order-of-checks", "rejected = sorted(self._letters)", "rejected = list(self._letters)"),
        Fault(
            "new-class-known-before",
            "[classes], met]).astype(np.int64))[:-1]",
            "[classes], met]).astype(np.int64))[1:]",
        ),
    ],
    "rows": [
        Fault("unknown-outputs-as-objects", "            targets[i] = None\n", "            pass\n"),
        Fault("flush-does-not-wait", "        self._wait()\n        self._sink.flush(", "        self._sink.flush("),
        Fault("any-number-of-writes", "self._wait(MOST_WAITING - 1)", "self._wait(10**9)"),
    ],
    "decoders": [
        Fault(
            "marker-refused",
            "is_missing(value):\n        return math.nan\n    elif",
            "decimal and False:\n        pass\n    elif",
        ),
        Fault("label-by-usual-markers", "self._notation(name, VERBATIM.missing)", "self._notation(name, MISSING)"),
        Fault("codes-stay-in-fast-numbers", ", values) if notation.codes else values", ", values) if 0 else values"),
        Fault("thousands-after-a-zero", "(?!0)\\d{{1,3}}{mark}", "\\d{{1,3}}{mark}"),
        Fault("unit-before-a-name", "(?:(?<![^\\W\\d_])| +) *)?", " *)?"),
        Fault("local-time-as-utc", "if is_local and notation.zone:", "if False:"),
        Fault("csv-doubled-quote", "quoted.replace('\"\"', '\"')", "quoted"),
        Fault("csv-fast-quotes", '(b\'"\', b"\\r", codecs.BOM_UTF8)', '(b"\\r", codecs.BOM_UTF8)'),
        Fault(
            "json-first-of-two-keys",
            "JSONDecoder(parse_int",
            "JSONDecoder(object_pairs_hook=lambda p: dict(p[::-1]), parse_int",
        ),
        Fault("json-huge-integer", "(literal) if math.isfinite(float(literal)) else Decimal(literal)", "(literal)"),
        Fault("json-huge-float", "return value if math.isfinite(value) else Decimal(literal)", "return value"),
        Fault("whole-float-label", "str(int(value)) if value == int(value) ", "repr(value) if value == int(value) "),
        Fault("time-offset-sign", "whole -= int(f", "whole += int(f"),
        Fault("fast-partial-target", ".any(axis=1) & ~missing.all(axis=1)", ".any(axis=1) & missing.all(axis=1)"),
        Fault("column-of-unlearned-record", "weight is None or bool(numbers[-1] != 0.0)", "weight != 0"),
        Fault("csv-fast-negative-zero", "return None if is_unclear else values", "return values"),
    ],
    "label join": [
        Fault("half-not-utf8", "_brackets(record) <= _DEPTH and is_utf8(record)", "_brackets(record) <= _DEPTH"),
        Fault("label-expires-one-early", "self._seen - oldest.number > events", "self._seen - oldest.number >= events"),
        Fault("label-expiry-in-milliseconds", "> 1e3 * seconds", "> seconds"),
        Fault(
            "newer-half-keeps-old-place",
            'self._expire(before, "another record of its kind has come under that key")',
            'self._expired.append(_Expired(before, "", 0))',
        ),
        Fault("label-does-not-win", " in values or (name in self._label_fields and value != _NULL):", " in values:"),
        Fault("label-clock-not-kept", "np.array([self._seen, self._now], np", "np.array([self._seen, _UNKNOWN], np"),
    ],
    "guards": [
        Fault("bad-ratio-at-the-limit", "if worst > self.max_ratio * BAD", "if worst >= self.max_ratio * BAD"),
        Fault("bad-window-too-long", "flags[-(BAD_RECORD_WINDOW - 1) :]", "flags[-BAD_RECORD_WINDOW:]"),
        Fault("jump-window-by-batch", "losses[at : at + state.length - state.count]", "losses[at : at + state.length]"),
        Fault("jump-in-four-windows", "len(state.high) < WINDOWS_PER_JUMP:", "len(state.high) <= WINDOWS_PER_JUMP:"),
        Fault("way-back-into-doubt", "if learned <= sound), default", "if learned <= sound + 1_000), default"),
    ],
    "global model": [
        Fault(
            "rival-chosen-in-hindsight",
            "            self._gain = _KEEP * self._gain + (1.0 - _KEEP) * gain\n",
            "            self._gain = _KEEP * self._gain + (1.0 - _KEEP) * gain\n"
            "            chosen[i] = self.favours_rival\n",
        ),
        Fault("outlier-decides-who-predicts", "min(max(loss - other, -MAX_GAIN), MAX_GAIN)", "loss - other"),
        Fault(
            "unknown-class-scores-a-hit",
            "np.maximum(predictions[:, at], column)",
            "column * (name in names)",
        ),
        Fault(
            "guard-sees-the-rival",
            "*(each.outcome.losses[",
            "*((each.outcome if each.rival is None else each.rival[1]).losses[",
        ),
    ],
    "challengers": [
        Fault("scores-over-other-events", "at = outcome.learned & np.isin(rows, both)", "at = outcome.learned"),
        Fault(
            "stop-in-a-challengers-fit",
            "may_fit or (self.challenger is not None and self.challenger.pipeline.may_fit)",
            "may_fit",
        ),
        Fault("failing-challenger-stays", "if challenger is not None and challenger.failure:", "if False:"),
        Fault("challenger-in-the-digest", '"labels.refused", CHALLENGER, CHAMPION)', '"labels.refused")'),
        Fault("other-challenger-goes-on", '(differing := [*_conflicts("model", before, own)])', "(differing := [])"),
        Fault("promotion-of-unseen-predictions", "store.confirmed != generation:", "store.confirmed > generation:"),
        Fault("promotion-is-taken-back", "store.confirm(promoted)", "pass"),
        Fault("promotion-removes-what-undoes-it", "len(store.generations()) + 1, lock", "1, lock"),
        Fault("reload-after-a-promotion", 'settings.exchanged() if "promoted" in self.description', "settings if True"),
    ],
    "scores": [
        Fault("baseline-knows-target", "baseline = sums[:-1]", "baseline = sums[1:]"),
        Fault("exponential-mean-biased", "self.exponential / self.weight", "self.exponential"),
        Fault("counters-not-restored", "        Counter(outcomes),\n", "        Counter(),\n"),
        Fault("totals-counted-again", "before = self._totals.get((name, *labels), total)", "before = 0"),
    ],
    "server": [
        Fault(
            "wait-ends-between-attempts",
            "since = started if self._unanswered_since is None else self._unanswered_since",
            "since = started",
        ),
        Fault("age-set-back-with-sink", "reload=reload, health=health,", "reload=reload,"),
        Fault("connection-as-of-last-poll", "self._health.source = source.status", "pass"),
        Fault("metrics-without-password", "if not self._expected:\n            return True", "return True"),
        Fault("ready-while-unsaved", 'return f"nothing can be saved: {self.unsaved}"', 'return ""'),
    ],
    "requests": [
        Fault(
            "snapshots-rest-as-long-as-one-hung",
            "min(worked / SHARE, LONGEST_PAUSE)",
            "worked / SHARE",
        ),
        Fault("out-of-range-is-answered", "sorted([*decoded.rejected, *found])", "decoded.rejected"),
    ],
    "settings": [
        Fault("unknown-setting-accepted", ', extra="forbid", context=context)', ', extra="ignore", context=context)'),
        Fault(
            "environment-over-flag",
            "    for variable, text in sorted(environment.items()):\n        reader.read_variable(variable, text)\n"
            "    for flag in overrides:\n        reader.read_flag(flag)\n",
            "    for flag in overrides:\n        reader.read_flag(flag)\n"
            "    for variable, text in sorted(environment.items()):\n        reader.read_variable(variable, text)\n",
        ),
        Fault("limit-may-fall", "value[name] > was[name])", "value[name] != was[name])"),
        Fault("settings-of-older-version", "was = {**_defaults(table), **was}", "pass"),
        Fault("settings-of-newer-version", "for name in {**was, **value} if", "for name in value if"),
        Fault("reload-takes-anything", "if name not in reloadable(new)]", "if name not in changed]"),
    ],
    "files": [
        Fault("fingerprint-not-compared", 'digest(head[: file["head_bytes"]]) == file["head_sha256"]', "bool(head)"),
        Fault("quoted-line-end-ends-record", "(quotes, lines) % 2 == 0]", "(quotes, lines) % 2 < 2]"),
        Fault("record-beyond-limit-kept", ".max(initial=0) <= limit and rest", ".max(initial=0) <= 10**9 and rest"),
        Fault("blank-line-shifts-offsets", "(lengths[keep]), starts[keep]", "(lengths[keep]), starts[: keep.sum()]"),
        Fault("resume-inside-long-record", ' = int(not self._buffer.startswith(b"\\n"))', " = 0"),
        Fault("renamed-file-read-again", 'and _is_gone(file["path"])', 'and not file["path"]'),
        Fault("rotated-file-lost", "for name in (path, *_siblings(path)) if", "for name in (path,) if"),
        Fault("successor-without-data", 'self.file["inode"] and status.st_size:', 'self.file["inode"]:'),
        Fault("overwritten-file-read-on", "has_shrunk or not head.startswith(self.head):", "has_shrunk:"),
        Fault("gzip-damage-is-the-end", "self._damage = self._damaged(error)", 'data = b""'),
    ],
    "kafka": [
        Fault("kafka-offset-behind-fetched", 'return int(self.records["offset"][0])', "return self.fetch_position"),
        Fault("kafka-reads-stop", '["offset"], self.stop_offset)', '["offset"], self.stop_offset, "right")'),
        Fault("kafka-metadata-read-beyond-end", 'text[: text.find("}") + 1]', "text"),
        Fault("kafka-tie-by-chance", 'argsort(np.concatenate(keys), kind="stable")', "argsort(np.concatenate(keys))"),
        Fault("kafka-merge-by-own-time", "np.maximum.accumulate(own[:max_records])", "own[:max_records]"),
        Fault("kafka-backlog-overtaken", "Hold.BOUNDED if self.was_at_end else Hold.UNBOUNDED", "Hold.BOUNDED"),
        Fault("kafka-clock-ahead-starves", "min(max(certain, late), unbounded) + 1", "min(certain, unbounded) + 1"),
        Fault("kafka-new-transaction-reported", "        if not self.is_behind:\n", "        if False:\n"),
        Fault("kafka-open-transaction-is-stall", "behind if b.stable_end > b.fetch_position}", "behind}"),
        Fault("kafka-open-transaction-no-lag", "{partition: buffer.end for", "{partition: buffer.stable_end for"),
        Fault("kafka-late-answer-is-end", "limits.asked_at >= self.progress_at", "True"),
        Fault("kafka-markers-not-passed", "if offset > self.fetch_position:", "if offset < 0:"),
        Fault("kafka-tombstone-learned", "records[is_event] if n_tombstones else records", "records"),
        Fault("kafka-owner-ignored", "owner.startswith(mark.owner)", "True"),
        Fault("kafka-recreated-topic-read-on", "None not in {one, other} and one != ", "one is None and one != "),
        Fault("kafka-left-partition-forgotten", '"partitions": {**kept, **unread}', '"partitions": unread'),
    ],
    "letters": [
        Fault("letters-of-equal-records-lost", "record = place_in_words(letter.location), ", 'record = "", '),
        Fault("letters-of-several-lines", 'b"  " if form != "csv" else', 'b"\\r\\n" if form != "csv" else'),
        Fault("rollback-of-stdin", "    replayable = False", "    replayable = True"),
    ],
    "shards": [
        Fault(
            "shard-of-another-run-reused",
            "(known.generation, known.state_digest) == (generation, digest)",
            "known.generation == generation",
        ),
        Fault("shard-part-lost", "                    found = known\n", "                    found = None\n"),
        Fault("version-of-damaged-reused", "max([after, *self.generations()])", "max([after])"),
        Fault("version-of-removed-reused", "contained, after=before)", "contained, after=0)"),
        Fault("events-from-elsewhere-counted-again", "max(shard.n_before for shard", "sum(shard.n_before for shard"),
        Fault("copy-counted-twice", 'whole["owner", original]', 'whole[shard.n, "owner"]'),
        Fault("file-of-two-shards-counted-twice", "whole.update(_files(part))", "whole.update()"),
    ],
    "process": [
        Fault("second-signal-ignored", "if self.requested or not self.armed:", "if not self.armed:"),
        Fault("early-signal-ignored", "with StopFlag(armed=False):\n        from", "with StopFlag():\n        from"),
    ],
}
"""By area."""
