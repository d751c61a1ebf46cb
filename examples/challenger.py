"""Let a second model learn beside the one of a daemon, and promote it since it is better."""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from streammoe import load

SETTINGS = """
source = { kind = "file", path = "events.jsonl" }
schema.target = "y"
checkpoint.dir = "state"
metrics.enabled = false

[model]                 # what predicts
n_experts = 1
curved = "off"

[challenger]            # learns the same events, and predicts for nobody
n_experts = 4
"""


def command(folder: Path, *arguments: str) -> str:
    """Run the command in a folder, and return what it prints."""
    words = [sys.executable, "-m", "streammoe", *arguments]
    return subprocess.run(words, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def show(folder: Path) -> None:
    """Print how well both have predicted the events that both have learned, each before it was learned."""
    challenger = json.loads(command(folder, "inspect", "state", "--json"))["challenger"]
    for title, scores in (("model", "champion_scores"), ("challenger", "scores")):
        print(f"  {title}: log-loss {challenger[scores]['log_loss']:.3f}, error {challenger[scores]['rmse']:.3f}")


def main() -> None:
    rng = random.Random(7)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "settings.toml").write_text(SETTINGS)
        with (folder / "events.jsonl").open("w") as file:
            for _ in range(3_000):
                a, b, noise = (rng.gauss(0.0, 1.0) for _ in range(3))
                y = (3.0 * b if a > 0.0 else -2.0 * b) + 0.3 * noise
                file.write(json.dumps({"a": a, "b": b, "y": y}) + "\n")
        command(folder, "run", "settings.toml")
        show(folder)
        print(f"the model has {load(folder / 'state').chosen_n_experts} expert")
        print(command(folder, "promote", "state"), end="")
        print(f"the model has {load(folder / 'state').chosen_n_experts} experts")


if __name__ == "__main__":
    main()
