"""What type checkers and editors see of the estimators; `make lint` checks this file.

A wrong call that were accepted would leave a comment without use, which is an error.
"""

from typing import assert_type

from river.conf import Interval

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, sklearn
from streammoe.estimators.river_mixture import RiverMixture

assert_type(MoERegressor(3, warmup=60, serve="polyak").predict_one({"a": 1.0}), float)
assert_type(MoERegressor().predict_one({"a": 1.0}, with_dist=True), RiverMixture)
assert_type(MoERegressor().predict_one({"a": 1.0}, with_interval=True), Interval)
MoERegressor().predict_one({"a": 1.0}, with_dist=True, with_interval=True)  # type: ignore[call-overload]
MoEMultiTargetRegressor("auto", categorical=("zip",), lags=2)
MoEClassifier(classes=["a", "b"])
MoERegressor(n_experts=3.5)  # type: ignore[arg-type]
MoERegressor(n_expert=3)  # type: ignore[call-arg]
MoERegressor(serve="portfolo")  # type: ignore[arg-type]
MoEClassifier(lags=2)  # type: ignore[arg-type]
MoERegressor(4, 2)  # type: ignore[call-arg]
assert_type(sklearn.MoERegressor(3, lags=2).fit([[1.0]], [2.0]), sklearn.MoERegressor)
sklearn.MoEClassifier(serve="portfolo")  # type: ignore[arg-type]
sklearn.MoEClassifier(4, 2)  # type: ignore[call-arg]
