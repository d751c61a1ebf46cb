"""Of models that ONNX or MLflow cannot hold."""

from streammoe import MoERegressor
from streammoe.mlflow import signature_of
from streammoe.onnx import export
from tests.unit.estimators.test_onnx import REFUSED

CASES = {
    **{
        f"to ONNX, {name}": lambda folder, make=make: export(make(), folder / "m.onnx")
        for name, make in REFUSED.items()
    },
    "to ONNX, other numbers": lambda folder: export(MoERegressor(), folder / "m.onnx", dtype="float16"),
    "to MLflow, no model": lambda _: signature_of("model.safetensors"),
    "to MLflow, nothing learned": lambda _: signature_of(MoERegressor()),
}
