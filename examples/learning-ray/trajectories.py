"""What the evaluation of `cases.csv` recorded: python trajectories.py out.parquet"""

import sys

import numpy as np
import pyarrow.parquet


def main() -> None:
    table = pyarrow.parquet.read_table(sys.argv[1]).to_pandas()
    for episode, rows in list(table.groupby("episode"))[:5]:
        seen = np.stack(rows["obs.observations"].to_numpy())
        distance = 50 * np.linalg.norm(seen[:, :3], axis=1)
        fired = rows["action"].dropna() > 0
        way = f"{distance[0]:5.1f} m -> {distance[-1]:4.2f} m"
        print(f"episode {episode}: {way}, {fired.sum()} firings in {len(fired)} steps")


if __name__ == "__main__":
    main()
