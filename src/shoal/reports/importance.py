"""Which settings matter: the share of the differences between trials that each of them explains.

Trials are compared by rank, so that one that diverged weighs no more than any other bad one (`curves.fair_ranks`). A
setting's values, or ranges of them that hold equally many trials, part the trials into bins; the share is that of the
ranks' variance which lies between bins, less what bins would show by chance (adjusted R squared). What two settings
explain together beyond their sum is theirs as a pair. Where two settings happened to go together, both explain the
same, and shares add up to more than all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

from shoal.data.number_text import counted
from shoal.reports.labels import same_key, short_names

Ints: TypeAlias = "np.ndarray[Any, np.dtype[np.intp]]"
Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

FEWEST_TRIALS = 10
TRIALS_PER_VALUE, TRIALS_PER_RANGE = 3, 6
MOST_RANGES, RANGES_OF_A_PAIR = 6, 3
TRIALS_PER_CELL = 5
MOST_PAIRED = 12
SHUFFLES = 200
NOTABLE = 0.1


@dataclass(frozen=True)
class Importance:
    """How much one setting explains, or two together beyond what each does alone."""

    paths: tuple[str, ...]
    share: float
    """0 to 1."""
    by_chance: bool = False
    """Whether shuffled ranks give as much in 5 of 100 cases."""


@dataclass(frozen=True)
class Importances:
    """Every setting that differs, most important first, then notable pairs; `note` says why there is nothing."""

    settings: tuple[Importance, ...] = ()
    pairs: tuple[Importance, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class _Sample:
    """What is compared: trials, or draws of which each is several trials."""

    values: dict[str, list[Any]]
    good: Floats
    order: Ints
    """Rows of places: the true order, then shuffled ones."""
    part: float
    """The share of all differences that lies between its members."""


def importances(
    paths: Sequence[str],
    trials: Sequence[Mapping[str, Any]],
    ranks: Sequence[float],
    grids: Collection[str] = (),
) -> Importances:
    """The importance of the settings at `paths`, from the settings of trials and how well each did (more is better).

    With `grids`, Tune tries every point of those for each draw of the other settings: what was drawn six times was
    tried six times, however many trials that makes.
    """
    count = len(trials)
    if not paths:
        return Importances(note="no setting differs between trials")
    if count < FEWEST_TRIALS:
        few = counted(count, "configuration", ("is", "are"))
        return Importances(note=f"{few} too few; at least {FEWEST_TRIALS} are needed")
    if min(ranks) == max(ranks):
        return Importances(note="all trials did equally well")
    whole = _sample(paths, trials, ranks, list(range(count)))
    drawn = _sample(paths, trials, ranks, _draws(trials, grids))
    samples = {path: whole if path in grids else drawn for path in paths}
    found, left_out, names = [], [], short_names(paths)
    for path, sample in samples.items():
        bins = _bins(sample.values[path], MOST_RANGES) if len(sample.good) >= FEWEST_TRIALS else None
        if bins is None:
            left_out.append(names[path])
            continue
        shares = _explained(_one_hot(bins), sample.good[sample.order])
        chance = float(np.mean(shares[1:] >= shares[0]))
        found.append(Importance((path,), max(float(shares[0]), 0.0) * sample.part, chance >= 0.05))
    found.sort(key=lambda one: -one.share)
    pairs = []
    for first, second in combinations([one.paths[0] for one in found[:MOST_PAIRED]], 2):
        pairs.append((first, second, whole if {first, second} & set(grids) else drawn))
    note = f"{', '.join(left_out)}: too few different trials" if left_out else ""
    return Importances(tuple(found), _notable(pairs), note)


def _draws(trials: Sequence[Mapping[str, Any]], grids: Collection[str]) -> list[int]:
    """Which draw each trial is of: how often its point of the grids came before."""
    seen: dict[str, int] = {}
    found = []
    for trial in trials:
        point = same_key([trial.get(path) for path in grids])
        found.append(seen.get(point, 0))
        seen[point] = found[-1] + 1
    return found


def _sample(
    paths: Sequence[str], trials: Sequence[Mapping[str, Any]], ranks: Sequence[float], members: list[int]
) -> _Sample:
    single = np.asarray(ranks, np.float64)
    belongs = _one_hot(np.asarray(members, np.intp))
    sizes = belongs.sum(axis=0)
    good = single @ belongs / sizes
    part = float(sizes @ (good - single.mean()) ** 2 / ((single - single.mean()) ** 2).sum())
    first = [members.index(member) for member in range(len(good))]
    rng = np.random.default_rng(0)
    order = np.stack([np.arange(len(good)), *(rng.permutation(len(good)) for _ in range(SHUFFLES))])
    return _Sample({path: [trials[at].get(path) for at in first] for path in paths}, good, order, part)


def _notable(pairs: Iterable[tuple[str, str, _Sample]]) -> tuple[Importance, ...]:
    """The pairs that explain notably more than their sum, and more than the best of all pairs does by chance."""
    shares, gains = [], []
    for first, second, sample in pairs:
        designs = _designs(sample.values[first], sample.values[second])
        if designs is None:
            continue
        base, whole = designs
        centred = sample.good - sample.good.mean()
        alone, together = (_adjusted(_captured(q, centred[None]), centred, q.shape[1])[0] for q in designs)
        shares.append(Importance((first, second), float(together - alone) * sample.part))
        # What is left of the ranks after both are taken out is what chance can shuffle.
        rest = (centred - base @ (base.T @ centred))[sample.order]
        gain = _captured(whole, rest) - _captured(base, rest)
        gains.append(gain / max(gain[1:].mean(), 1e-12))
    if not gains:
        return ()
    limit = np.quantile(np.max([gain[1:] for gain in gains], axis=0), 0.99)
    notable = [pair for pair, gain in zip(shares, gains, strict=True) if pair.share >= NOTABLE and gain[0] > limit]
    return tuple(sorted(notable, key=lambda pair: -pair.share))


def _designs(first: Sequence[Any], second: Sequence[Any]) -> tuple[Floats, Floats] | None:
    """What the sum of two settings spans, and what their combinations do; None if trials are too few for that."""
    one, two = _bins(first, RANGES_OF_A_PAIR), _bins(second, RANGES_OF_A_PAIR)
    if one is None or two is None:
        return None
    cells = _codes(list(zip(one.tolist(), two.tolist(), strict=True)))
    if len(cells) < TRIALS_PER_CELL * (int(cells.max()) + 1):
        return None
    base, whole = _basis(np.concatenate([_one_hot(one), _one_hot(two)], axis=1)), _basis(_one_hot(cells))
    return (base, whole) if whole.shape[1] > base.shape[1] else None


def _bins(values: Sequence[Any], most: int) -> Ints | None:
    """Which bin each trial is in; None if there are too many values and they have no order."""
    count = len(values)
    codes = _codes([same_key(value) for value in values])
    kinds = int(codes.max()) + 1
    ordered = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    if kinds <= max(most, 2) or not ordered:
        return codes if count >= TRIALS_PER_VALUE * kinds else (_ranges(values, most) if ordered else None)
    return _ranges(values, most)


def _ranges(values: Sequence[Any], most: int) -> Ints:
    numbers = np.asarray(values, np.float64)
    wanted = min(most, max(2, len(values) // TRIALS_PER_RANGE))
    edges = np.unique(np.quantile(numbers, np.linspace(0, 1, wanted + 1)[1:-1]))
    return _codes(np.searchsorted(edges, numbers, side="right").tolist())


def _codes(values: Sequence[Any]) -> Ints:
    places = {value: place for place, value in enumerate(sorted(set(values)))}
    return np.asarray([places[value] for value in values], np.intp)


def _one_hot(bins: Ints) -> Floats:
    return np.eye(int(bins.max()) + 1)[bins]


def _explained(one_hot: Floats, ranks: Floats) -> Floats:
    """Adjusted R squared of the bins, for each row of ranks."""
    centred = ranks - ranks.mean(axis=1, keepdims=True)
    between = ((centred @ one_hot) ** 2 / one_hot.sum(axis=0)).sum(axis=1)
    return _adjusted(between, centred[0], one_hot.shape[1])


def _basis(columns: Floats) -> Floats:
    """Orthonormal columns that span the same."""
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(left[:, sizes > 1e-9 * sizes[0]])


def _captured(basis: Floats, rows: Floats) -> Floats:
    return np.asarray(((rows @ basis) ** 2).sum(axis=1))


def _adjusted(between: Floats, centred: Floats, parameters: int) -> Floats:
    count = len(centred)
    return np.asarray(1 - (1 - between / (centred**2).sum()) * (count - 1) / max(count - parameters, 1))
