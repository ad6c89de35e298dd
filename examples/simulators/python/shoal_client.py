"""The lines protocol for a simulator in Python that shall not import shoal. Copy this file beside it.

from shoal_client import Shoal, box, discrete

shoal = Shoal(observation=box([-1, -1], [1, 1]), action=discrete(3))
while shoal.begin():                                # a new episode is wanted; shoal.seed is its seed
    shoal.observe(first_observation)
    while (action := shoal.action()) is not None:   # None: the episode is over, or shoal has left
        ...
        shoal.result(observation, reward, terminated, truncated)
"""

import json
import os
import socket
import sys


def box(low, high, shape=None):
    """A space of numbers between bounds, each a number or a list."""
    space = {"type": "Box", "low": low, "high": high}
    return space if shape is None else {**space, "shape": list(shape)}


def discrete(n):
    """A space of the n actions 0, 1, ... n - 1."""
    return {"type": "Discrete", "n": n}


class Shoal:
    """The connection to shoal: stdin and stdout, or the socket of SHOAL_ADDRESS; an address may be given, too."""

    def __init__(self, observation, action, address=None):
        address = address or os.environ.get("SHOAL_ADDRESS")
        if address is None:
            self._reader, self._writer = sys.stdin, os.fdopen(os.dup(1), "w")
            sys.stdout = sys.stderr  # what the simulator prints is no message
        else:
            self._reader = self._writer = _connected(address).makefile("rw")
        self.seed, self.options, self._message = None, None, None
        token = os.environ.get("SHOAL_TOKEN")
        self._send({"shoal": 1, "observation": observation, "action": action, "token": token})
        hello = self._receive() or {}
        self.env_config, self.env_index = hello.get("env_config", {}), hello.get("env_index", 0)

    def begin(self):
        """Wait for the next episode; False if there is none."""
        message = self._message or self._receive()
        self._message = None
        if message is None or "reset" not in message:
            return False
        self.seed, self.options = message["reset"].get("seed"), message["reset"].get("options")
        return True

    def observe(self, obs):
        """Send the first observation of an episode."""
        self._send({"obs": _plain(obs)})

    def action(self):
        """Wait for the next action; None if this episode goes no further."""
        message = self._receive()
        if message is None or "step" not in message:
            self._message = message
            return None
        return message["step"]

    def result(self, obs, reward, terminated=False, truncated=False, **info):
        """Send what came of the action."""
        flags = {"terminated": bool(terminated), "truncated": bool(truncated)}
        self._send({"obs": _plain(obs), "reward": float(reward), **flags, "info": info})

    def error(self, text):
        """Tell that the simulation cannot go on."""
        self._send({"error": str(text)})

    def _send(self, message):
        self._writer.write(json.dumps(message) + "\n")
        self._writer.flush()

    def _receive(self):
        line = self._reader.readline()
        return json.loads(line) if line else None


def _connected(address):
    kind, _, place = address.partition(":")
    if kind == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(place)
        return connection
    host, _, port = place.rpartition(":")
    return socket.create_connection((host, int(port)))


def _plain(obs):
    return obs.tolist() if hasattr(obs, "tolist") else obs
