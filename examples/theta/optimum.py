"""The optimum of the ratio environment, by trying all 49**4 choices: python optimum.py"""

from __future__ import annotations

import itertools
import math

from ratio_env import NUM_CHOICES, SCALAR, SMALLEST

NUMBERS = range(SMALLEST, SMALLEST + NUM_CHOICES)


def optimum(scalar: float = SCALAR) -> tuple[float, list[tuple[int, int, int, int]]]:
    """The smallest square, and every choice x1..x4 that has it.

    A choice counts only by its two products, so their pairs stand for all choices: about a million instead of six.
    """
    products = sorted({first * second for first in NUMBERS for second in NUMBERS})
    square, above, below = min(
        ((scalar - above / below) ** 2, above, below) for above in products for below in products
    )
    numerators, denominators = factors(above), factors(below)
    return square, [(a, b, c, d) for b, c in numerators for a, d in denominators]


def factors(product: int) -> list[tuple[int, int]]:
    """Both orders of every pair of numbers with this product."""
    return [pair for pair in itertools.product(NUMBERS, repeat=2) if pair[0] * pair[1] == product]


def main() -> None:
    square, choices = optimum()
    print(f"choices: {NUM_CHOICES**4:,}")
    print(f"best reward: {-square:.4g} ({-math.log10(square):.4f} digits)")
    for a, b, c, d in choices:
        print(f"{b} * {c} / ({a} * {d}) = {b * c / (a * d):.9f}, actions {[x - SMALLEST for x in (a, b, c, d)]}")


if __name__ == "__main__":
    main()
