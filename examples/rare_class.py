"""Decide by probabilities where one class is rare, and missing it costs more than looking in vain."""

import math
import random
from collections.abc import Iterator

from river import metrics, stats

from streammoe import MoEClassifier

MISSED, CHECKED = 40.0, 1.0
"""What a fraud costs that nobody looked at, and what a look costs."""


def payments(n: int) -> Iterator[tuple[dict[str, object], str]]:
    """Yield payments, of which some 2 % are frauds: large ones by night, and any to one country."""
    rng = random.Random(5)
    for _ in range(n):
        amount, hour = rng.lognormvariate(3.0, 1.0), rng.randrange(24)
        country = rng.choices(["home", "near", "far"], [0.8, 0.19, 0.01])[0]
        odds = -6.0 + (math.log(amount) - 1.0 if hour < 6 else 0.0) + (4.0 if country == "far" else 0.0)
        fraud = rng.random() < 1.0 / (1.0 + math.exp(-odds - 0.8))
        yield {"amount": math.log(amount), "night": hour < 6, "country": country}, "fraud" if fraud else "fine"


def main() -> None:
    model = MoEClassifier(classes=["fine", "fraud"])
    loss, usual, rate = metrics.LogLoss(), metrics.LogLoss(), stats.Mean()
    ranked = metrics.ROCAUC()
    costs = dict.fromkeys(("by the model", "without any look", "with a look at each"), 0.0)
    for event, (x, y) in enumerate(payments(8_000)):
        chance = model.predict_proba_one(x)["fraud"]
        is_fraud = y == "fraud"
        if event >= 1_000:
            loss.update(is_fraud, chance)
            usual.update(is_fraud, rate.get())
            ranked.update(is_fraud, chance)
            # Not weights but the threshold: events that weigh more would make frauds look more frequent than they are.
            look = chance * MISSED > CHECKED
            costs["by the model"] += CHECKED if look else MISSED * is_fraud
            costs["without any look"] += MISSED * is_fraud
            costs["with a look at each"] += CHECKED
        model.learn_one(x, y)
        rate.update(is_fraud)
    print(f"{rate.get():.1%} of the payments were frauds; area under the ROC curve {ranked.get():.2f}")
    print(f"log-loss: {loss.get():.4f}, by the rate of frauds alone {usual.get():.4f}")
    for name, cost in costs.items():
        print(f"cost {name}: {cost:,.0f}")


if __name__ == "__main__":
    main()
