"""A search over a function of your own: 25 combinations of two numbers, as many at a time as there are cores."""

import math
import time

from shoal import tune


def training_function(config):
    x, y = config["x"], config["y"]
    time.sleep(0.1)  # stands for training that takes longer
    score = objective(x, y)
    tune.report(score=score)


def objective(x, y):
    """The root of the mean of the squares; it could be a total reward, or any other measure."""
    return math.sqrt((x**2 + y**2) / 2)


def main() -> None:
    result = tune.run(
        training_function,
        config={
            "x": tune.grid_search([-1, -0.5, 0, 0.5, 1]),
            "y": tune.grid_search([-1, -0.5, 0, 0.5, 1]),
        },
    )
    print(result.get_best_config(metric="score", mode="min"))
    print(result.dataframe()[["config/x", "config/y", "score"]].sort_values("score").head())


if __name__ == "__main__":
    main()
