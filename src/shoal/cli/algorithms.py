"""`shoal algorithms`: what `--run` may name, and where it comes from."""

from __future__ import annotations

import os

import click

# Looking for plugins would cost pydantic more than all it does here.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


@click.command()
def algorithms() -> None:
    """List the algorithms that --run may name, and the package that each comes from.

    Those of RLlib, rllib:NAME, need pip install 'shoal-rl[rllib]'.
    Packages add algorithms by the entry point group shoal.algorithms. Their code is not imported here.
    """
    from importlib.metadata import version

    from shoal.config.algorithms import ALGORITHMS, BUILT_IN, installed_algorithms, rllib_algorithms
    from shoal.version import __version__

    rows = [(name, f"shoal {__version__}", _first_sentence(ALGORITHMS[name].__doc__)) for name in BUILT_IN]
    ignored: list[str] = []
    for one in installed_algorithms():
        if one.name in BUILT_IN:
            ignored.append(f"{one.name} of {one.package} is not used: shoal has an algorithm of that name.")
        else:
            rows.append((one.name, one.package, one.summary or one.config))
    for name in rllib_algorithms():
        rows.append((name, f"ray {version('ray')}", _first_sentence(ALGORITHMS[name].__doc__)))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, package, summary in rows:
        click.echo(f"{name.ljust(widths[0])}  {package.ljust(widths[1])}  {summary}".rstrip())
    for sentence in ignored:
        click.echo(f"Warning: {sentence}", err=True)


def _first_sentence(doc: str | None) -> str:
    """The first line of a docstring up to its first semicolon or colon, without a full stop."""
    line = (doc or "").partition("\n")[0]
    return line.partition(";")[0].partition(":")[0].rstrip(".")
