"""Detector-driven steps in plain Python, as docs/algorithm.md and docs/drift.md say them; slow, and sharing nothing."""

import math
from statistics import median

BLOCK, CALIBRATION, THRESHOLD, TOLERANCE = 32, 16, 64.0, 2.0
CLIP, LARGEST, HORIZON = 8.0, 16.0, 100
LEAST_DEVIATION, LEAST_SPREAD = 0.1, 0.01


def clipped(value, limit):
    return min(max(value, -limit), limit)


class Detector:
    """Takes losses one by one; True where the last of a block is a change."""

    def __init__(self):
        self.block = []
        self.blocks = 0
        self.height = 0.0
        """Of the sum above its smallest, by the recursion of Page's test."""

    def takes(self, loss):
        self.block.append(loss)
        if len(self.block) < BLOCK:
            return False
        block, self.block = self.block, []
        self.blocks += 1
        if self.blocks == 1:
            self.level = median(block)
            self.deviation = 1.4826 * median(abs(loss - self.level) for loss in block)
            self.variance = max(self.deviation, LEAST_DEVIATION) ** 2 / BLOCK
        reach = CLIP * max(self.deviation, LEAST_DEVIATION)
        excesses = [clipped(loss - self.level, reach) for loss in block]
        mean = self.level + sum(excesses) / BLOCK
        spread = max(math.sqrt(self.variance), LEAST_SPREAD)
        excess = clipped((mean - self.level) / spread, LARGEST)
        share = max(1.0 / self.blocks, 1.0 / HORIZON)
        self.level += share * excess * spread
        self.deviation += share * (sum(map(abs, excesses)) / BLOCK - self.deviation)
        if self.blocks > 1:
            step = clipped((mean - self.before) / math.sqrt(2.0), LARGEST * spread)
            self.variance += share * (step**2 - self.variance)
        self.before = mean
        if self.blocks <= CALIBRATION:
            return False
        self.height = max(self.height + excess - TOLERANCE, 0.0)
        return self.height > THRESHOLD


class Steps:
    """γ of each event, given the losses of those before it."""

    def __init__(self, schedule, again, restart):
        self.schedule, self.again, self.restart = schedule, again, restart
        self.detector = Detector()
        self.drifts = []

    def gamma(self, n):
        if not self.drifts:
            return self.schedule(n)
        return max(self.schedule(n), self.again(n - self.drifts[-1] + self.restart))

    def learned(self, n, loss):
        """Whether steps restart after the n-th event."""
        if not self.detector.takes(loss):
            return False
        self.detector = Detector()
        self.drifts.append(n)
        return True
