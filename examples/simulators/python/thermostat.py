"""A room, a heater and the weather: keep 20 degrees. Nothing of shoal is imported but the client beside this file."""

import random

from shoal_client import Shoal, box

shoal = Shoal(observation=box([-30, -30], [60, 40]), action=box(0, 1, [1]))
while shoal.begin():
    chance = random.Random(shoal.seed)
    room, outside = chance.uniform(5, 30), chance.uniform(-10, 15)
    shoal.observe([room, outside])
    minute = 0
    while (action := shoal.action()) is not None:
        minute += 1
        room += 0.1 * (outside - room) + 6 * min(max(action[0], 0), 1)
        shoal.result([room, outside], reward=-abs(room - 20) / 10, truncated=minute == 48)
