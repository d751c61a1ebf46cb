"""Fuzz checkpoints and configurations for a while: python -m tests.fuzz.enemies --seconds 600.

Each case has a number; a failure prints it, and ``--seed NUMBER --cases 1`` is that case again. Memory is limited, so
that a shape that asks for more than there is shows as an error, and whatever takes too long is ended with a traceback.
"""

import argparse
import faulthandler
import itertools
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

from streammoe.errors import StreammoeError
from tests.fuzz.checkpoints import Enemy
from tests.fuzz.configs import attack_config, config
from tests.fuzz.victims import attack_model, models, victims

SPARE_BYTES = 1 << 30
"""Memory that a case may take on top of what the process has."""
LONGEST = 30
"""Seconds that one case may take."""


def attacks(folder):
    """Attacks by name; each takes a number and returns the error that rejects it, if any."""
    for name, model in models():
        sound = model.arrays(), model.describe()
        yield f"model {name}", lambda seed, of=sound: attack_model(Enemy(*of, Random(seed)).bytes(), folder)
    for victim in victims(folder):
        yield f"daemon {victim.name}", lambda seed, v=victim: v.attack(Enemy(*v.checkpoint, Random(seed)).bytes())
    yield "config", lambda seed: attack_config(config(Random(seed)), folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, help="stop after so many of each kind")
    options = parser.parse_args()
    faulthandler.enable()
    done, rejected = Counter(), Counter()
    with tempfile.TemporaryDirectory() as folder:
        chosen = list(attacks(folder))
        if sys.platform == "linux":
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_BYTES,) * 2)
        end = time.monotonic() + options.seconds
        for seed in itertools.islice(itertools.count(options.seed), options.cases):
            for name, attack in chosen:
                faulthandler.dump_traceback_later(LONGEST, exit=True)
                try:
                    problem = attack(seed)
                    assert problem is None or (isinstance(problem, StreammoeError) and str(problem).isprintable())
                except BaseException:
                    print(f"{name}: case {seed}", file=sys.stderr, flush=True)
                    raise
                faulthandler.cancel_dump_traceback_later()
                done[name] += 1
                rejected[name] += problem is not None
            if time.monotonic() > end:
                break
    for name in done:
        print(f"{name:30} {done[name]:7} cases, {rejected[name]:7} rejected")
    return 0


if __name__ == "__main__":
    sys.exit(main())
