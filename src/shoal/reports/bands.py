"""Many curves as one: the middle of seeds and how sure it is, moving means, and long curves thinned for a drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from shoal.reports.curves import Curve, Floats

Statistic = Literal["iqm", "mean"]

MOST_BAND_POINTS = 300
RESAMPLES = 1000


@dataclass(frozen=True)
class Band:
    """The middle of several curves at each `x`, and the ends of its 95 % interval by the bootstrap over the curves."""

    x: Floats
    middle: Floats
    low: Floats
    high: Floats
    count: int


def band_of(
    curves: Sequence[Curve], statistic: Statistic = "iqm", most: int = MOST_BAND_POINTS, resamples: int = RESAMPLES
) -> Band | None:
    """The band of curves over the range that all of them have; None if they have none in common.

    Between its points a curve is a straight line. The same curves always give the same band.
    """
    begin, end = max(float(curve.x[0]) for curve in curves), min(float(curve.x[-1]) for curve in curves)
    if begin > end:
        return None
    at: Floats = np.unique(np.concatenate([curve.x for curve in curves]))
    at = at[(at >= begin) & (at <= end)]
    if len(at) > most:
        at = at[np.unique(np.linspace(0, len(at) - 1, most).round().astype(int))]
    rows = np.stack([np.interp(at, curve.x, curve.y) for curve in curves])
    middle = middle_of(rows, statistic)
    if len(curves) < 2:
        return Band(at, middle, middle, middle, 1)
    rng = np.random.default_rng(0)
    chosen = rng.integers(0, len(rows), (resamples, len(rows)))
    middles = np.stack([middle_of(rows[own], statistic) for own in chosen])
    low, high = np.percentile(middles, [2.5, 97.5], axis=0)
    return Band(at, middle, low, high, len(curves))


def middle_of(rows: Floats, statistic: Statistic) -> Floats:
    """The mean of rows `[N, K]`, or that of the middle half of each column (a quarter, rounded down, is cut)."""
    cut = len(rows) // 4 if statistic == "iqm" else 0
    if cut:
        rows = np.sort(rows, axis=0)[cut : len(rows) - cut]
    return np.asarray(rows.mean(axis=0))


def smoothed(curve: Curve, window: int) -> Curve:
    """The mean of the `window` values around each, of fewer at the ends; 1 leaves the curve as it is."""
    if window < 2 or len(curve.y) < 3:
        return curve
    sums = np.concatenate([[0.0], np.cumsum(curve.y)])
    place = np.arange(len(curve.y))
    half = np.minimum.reduce([np.full(len(place), window // 2), place, len(place) - 1 - place])
    first, last = place - half, place + half + 1
    return Curve(curve.x, (sums[last] - sums[first]) / (last - first))


def thinned(curve: Curve, most: int) -> Curve:
    """At most `most` points that look the same: the lowest and the highest of each of `most / 2` stretches in turn."""
    count = len(curve.x)
    if count <= most:
        return curve
    edges = np.linspace(1, count - 1, max(most // 2, 2)).round().astype(int)
    first, last = edges[:-1], edges[1:]
    first, last = first[last > first], last[last > first]
    width = int((last - first).max())
    inside = np.minimum(first[:, None] + np.arange(width), last[:, None] - 1)  # short ones repeat their last point
    pieces = curve.y[inside]
    places = np.unique(np.concatenate([[0, count - 1], first + pieces.argmin(axis=1), first + pieces.argmax(axis=1)]))
    return Curve(curve.x[places], curve.y[places])
