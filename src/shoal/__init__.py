"""shoal trains reinforcement-learning agents on any simulation."""

from shoal.version import __version__ as __version__
