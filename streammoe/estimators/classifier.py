"""Classification into any number of classes, known in advance or added as they appear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

from river import base

from streammoe.errors import ConfigError
from streammoe.estimators.arguments import ClassifierArguments, complete
from streammoe.estimators.frames import like, table_of
from streammoe.experts import families
from streammoe.model import predicting
from streammoe.model.parameters import experts_in
from streammoe.model.targets import ClassTarget, Label, likeliest
from streammoe.options import ClassifierOptions
from streammoe.types import AnyArray, FloatArray


@complete
class MoEClassifier(ClassifierArguments, base.MiniBatchClassifier):
    """Mixture of multinomial logistic experts with a learned softmax gate, trained one event at a time.

    Learns P(y = m | x) as Σ_k g_k(x) softmax_m(C_k φ(x)) by incremental stochastic majorization-minimization. The first
    events are fitted in batch from several starts, at counts that double; until the first fit, single experts predict.
    Labels are strings, booleans or numbers; without `classes` they are added as they appear.

    Examples:
    --------
    >>> from river import datasets, metrics
    >>> from streammoe import MoEClassifier
    >>> model = MoEClassifier(n_experts=2, warmup=300)
    >>> metric = metrics.Accuracy()
    >>> for x, y in datasets.Phishing():
    ...     metric.update(y, model.predict_one(x))
    ...     model.learn_one(x, y)
    >>> metric.get() > 0.88
    True

    References:
    ----------
    Tran, Nguyen, Fort et al., "Revisiting Incremental Stochastic Majorization-Minimization Algorithms with
    Applications to Mixture of Experts", arXiv 2601.19811, Algorithms 1 and 3.
    """

    @property
    def _multiclass(self) -> bool:
        return True

    def _new_targets(self) -> ClassTarget:
        options = cast("ClassifierOptions", self.options)
        return ClassTarget(families()["categorical"], options.classes, options.max_classes)

    @classmethod
    def _blank(cls, parameters: Mapping[str, Any], arguments: Mapping[str, Any]) -> Self:
        n_classes, labels = experts_in(parameters).shape[1] + 1, arguments.get("classes")
        if labels is not None and len(labels) != n_classes:
            raise ConfigError(f"classes: got {len(labels)} labels; the parameters have {n_classes} classes")
        labels = tuple(range(n_classes)) if labels is None else labels
        return super()._blank(parameters, {**arguments, "classes": labels})

    # -- River's contract ------------------------------------------------------------------------------------------

    def predict_proba_one(self, x: Mapping[Any, Any], **kwargs: Any) -> dict[Label, float]:
        """Predict the probability of each label at `x`; empty before a label is known."""
        probabilities: dict[Label, float] = predicting.predict_one(self.learner, x)
        return probabilities

    def predict_one(self, x: Mapping[Any, Any], **kwargs: Any) -> Label | None:
        """Predict the likeliest label at `x`; None before a label is known."""
        probabilities = self.predict_proba_one(x)
        return max(probabilities, key=probabilities.__getitem__) if probabilities else None

    # -- Many at once ----------------------------------------------------------------------------------------------

    def predict_proba_array(self, X: AnyArray, *, feature_names: Sequence[Any] | None = None) -> FloatArray:
        """Predict the probability of each of `output_names` for each row of X (n, P), shape (n, M)."""
        return predicting.predict(self.learner, self._table(X, feature_names))

    def predict_array(self, X: AnyArray, *, feature_names: Sequence[Any] | None = None) -> AnyArray:
        """Predict the likeliest label for each row of X (n, P), shape (n,); None before a label is known."""
        return likeliest(self.output_names, self.predict_proba_array(X, feature_names=feature_names))

    def predict_proba_many(self, X: Any) -> Any:
        """Predict the probability of each label for each row of a frame, in a frame of its kind, with its index."""
        frame, table = table_of(self.learner.encoder, X)
        return like(frame, predicting.predict(self.learner, table), self.output_names)

    def predict_many(self, X: Any) -> Any:
        """Predict the likeliest label for each row of a frame: a series of its kind, with its index."""
        frame, table = table_of(self.learner.encoder, X)
        return like(frame, likeliest(self.output_names, predicting.predict(self.learner, table)))
