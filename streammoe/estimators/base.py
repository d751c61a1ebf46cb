"""What all estimators share, put together."""

from __future__ import annotations

from streammoe.estimators.checkpoint import Keeping
from streammoe.estimators.fitting import Fitting
from streammoe.estimators.inspecting import Inspecting
from streammoe.estimators.learning_array import LearningArray
from streammoe.estimators.learning_one import LearningOne
from streammoe.estimators.learning_rows import LearningRows
from streammoe.estimators.parameters import Parameters
from streammoe.estimators.predicting import Predicting


class MixtureOfExperts(LearningOne, LearningArray, LearningRows, Predicting, Inspecting, Parameters, Keeping, Fitting):
    """One state, its warm-up and its encoder; the estimators add what their targets look like.

    These parts know nothing of each other. Below them are, from the top: `coding` (categories among rows), `stepping`
    (rows to the engine), `starting` (the end of the warm-up), `core` (what a model holds), `outputs` (what an estimator
    adds) and `arguments`.
    """
