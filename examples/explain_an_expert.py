"""Say what the experts of a model have learned, and why it predicted what it did."""

import numpy as np

from streammoe import MoERegressor


def main() -> None:
    rng = np.random.default_rng(8)
    model = MoERegressor(n_experts=2, curved="off")
    for _ in range(3_000):
        x = {"outside": rng.normal(8.0, 8.0), "people": float(rng.integers(1, 6))}
        # Below 15 °C the house is heated, by 2 kWh a degree; above it only people use something.
        heating = 2.0 * (15.0 - x["outside"]) if x["outside"] < 15.0 else 0.0
        model.learn_one(x, heating + 1.5 * x["people"] + rng.normal())

    print("where each expert is preferred, and what an input adds there for each unit:")
    regions = {(region.member, region.expert): region.rule for region in model.regions()}
    for each in model.coefficients():
        if (each.member, each.expert) in regions and each.feature != "intercept":
            rule = regions[each.member, each.expert]
            print(f"  {rule}: {each.feature} {each.value:.2f} ± {each.standard_error:.2f}")

    x = {"outside": -5.0, "people": 2.0}
    found = model.explain_one(x)
    print(f"predicted at {x}: {found.prediction:.1f} kWh")
    print(f"  an average day by the same experts: {found.baseline['y']:.1f}")
    for name, value in found.contributions["y"].items():
        print(f"  because of {name}: {value:+.1f}")
    print(f"  moved into the range of what was seen: {found.holding['y']:+.1f}")


if __name__ == "__main__":
    main()
