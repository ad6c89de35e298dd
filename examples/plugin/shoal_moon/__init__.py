"""A package that adds to shoal: one module for each kind of thing, each of which may be left out."""
