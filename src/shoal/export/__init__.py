"""A trained policy as files that run without shoal, each proved when it is made."""
