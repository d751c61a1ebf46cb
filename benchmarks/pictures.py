"""Who is trusted while a relation changes at once, and while it changes slowly: the picture of docs/learning.md.

`python -m benchmarks.pictures` prints the underlying figures and draws docs/pictures/trust.png.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from benchmarks import drift
from benchmarks.report import parsed, table
from streammoe import MoERegressor
from streammoe.engine import portfolio

PALETTE = ("#0072B2", "#D55E00", "#E69F00", "#000000", "#009e73", "#56B4E9", "#CC79A7", "#F0E442")
MEMBERS = dict(zip(portfolio.MEMBERS, PALETTE, strict=True))
"""With colors that differ for color-blind eyes too (Okabe and Ito)."""
CHANGES = {"it changes at once": drift.abrupt, "it changes slowly": drift.gradual}
POINTS = 200
COLORS = 64
OUT = Path(__file__).parents[1] / "docs/pictures/trust.png"


def shares(stream: drift.Changing) -> np.ndarray:
    """Return the weight of each member after every so many events, (points, members)."""
    model, found = MoERegressor(2), []
    for X, y in zip(np.array_split(stream.X, POINTS), np.array_split(stream.y, POINTS), strict=True):
        model.learn_array(X, y)
        found.append([model.member_weights.get(name, 0.0) for name in MEMBERS])
    return np.array(found)


def main(argv: list[str] | None = None) -> None:
    """Print the figures, and draw."""
    given = parsed(__doc__, argv, seeds=4, events=20_000)
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    figure.suptitle("Who is trusted: the mixture while nothing changes, single experts while it is wrong", fontsize=11)
    panels = figure.subplots(1, 2)
    rows = []
    for panel, (title, make) in zip(panels, CHANGES.items(), strict=True):
        streams = [make(seed, given.events) for seed in range(given.seeds)]
        means = np.mean([shares(stream) for stream in streams], axis=0)
        at = np.linspace(given.events / POINTS, given.events, POINTS)
        panel.stackplot(at, means.T, labels=MEMBERS, colors=MEMBERS.values(), alpha=0.8)
        for place in (streams[0].begins, streams[0].ends):
            panel.axvline(place, color="0.2", linewidth=1.0, linestyle=":")
        panel.set(title=title, xlabel="events (the relation changes at or between dotted lines)", ylim=(0.0, 1.0))
        panel.set(xlim=(0, given.events), xticks=range(0, given.events + 1, given.events // 4))
        panel.grid(visible=True, alpha=0.3)
        for place in (streams[0].begins, streams[0].begins + 500, given.events):
            row = means[min(place * POINTS // given.events, POINTS) - 1]
            rows.append([title, f"event {place:,}", *(f"{share:.2f}" for share in row)])
    panels[0].set_ylabel("weight in the prediction")
    panels[1].legend(fontsize=8, loc="lower right")
    print(table(["relation", "at", *MEMBERS], rows))
    # With few colors a PNG is a third as large, and it contains no software version.
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    Image.open(drawn).convert("RGB").quantize(COLORS).save(OUT, optimize=True)


if __name__ == "__main__":
    main()
