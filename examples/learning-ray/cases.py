"""Draws the starts of a Monte Carlo evaluation: python cases.py 100 > cases.csv"""

import csv
import sys

import numpy as np

DISTANCES = (20.0, 100.0)  # m
SPEED = 0.03  # m/s, the standard deviation along each axis


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    rng = np.random.default_rng(0)
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["case", *(f"options.{name}" for name in ("x0", "y0", "z0", "vx0", "vy0", "vz0"))])
    for number in range(count):
        direction = rng.normal(size=3)
        position = rng.uniform(*DISTANCES) * direction / np.linalg.norm(direction)
        velocity = rng.normal(0, SPEED, 3)
        table.writerow([f"start_{number:03}", *(f"{value:.3f}" for value in (*position, *velocity))])


if __name__ == "__main__":
    main()
