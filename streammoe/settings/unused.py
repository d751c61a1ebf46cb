"""Settings that others leave nothing to do."""

from __future__ import annotations

from streammoe.options import RegressorOptions, shown
from streammoe.settings.sections import Model


def without_effect(model: Model) -> list[str]:
    """List settings that differ from their defaults where others leave them nothing to do.

    They are no errors: whoever tries another value of the one should not have to take out the other.

    >>> print(*without_effect(RegressorOptions(max_experts=8)))
    model.max_experts = 8 has no effect where model.n_experts = 4; set n_experts to 'auto', or leave max_experts out
    """
    fixed = not isinstance(model.n_experts, str)
    most = model.max_experts if isinstance(model.n_experts, str) else model.n_experts
    rules = [
        ("max_experts", fixed, "n_experts", "'auto'"),
        ("reseed", model.n_experts == 1, "n_experts", "2 or more"),
        ("top_k", (model.top_k or 0) >= most, "n_experts" if fixed else "max_experts", "more"),
        ("averaging_rate", model.averaging != "exponential", "averaging", "'exponential'"),
        ("drift_restart", model.drift == "off", "drift", "'page_hinkley'"),
        ("warmup_restarts", model.warmup == 0, "warmup", "more"),
    ]
    if isinstance(model, RegressorOptions):
        rules.append(("degrees_of_freedom", model.expert != "student_t", "expert", "'student_t'"))
    return [
        f"model.{name} = {shown(getattr(model, name))} has no effect where model.{other} = "
        f"{shown(getattr(model, other))}; set {other} to {wanted}, or leave {name} out"
        for name, idle, other, wanted in rules
        if idle and getattr(model, name) != type(model).model_fields[name].default
    ]
