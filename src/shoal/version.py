"""The version and the name to install by, kept apart so that reading them imports nothing."""

__version__ = "0.1.0"
DISTRIBUTION = "shoal-rl"  # `shoal` itself is somebody else's package on the public index
