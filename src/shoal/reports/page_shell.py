"""What every page of shoal has: one look, one script, and a policy that lets it run nothing else and fetch nothing."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from shoal.data.results import plain_json
from shoal.reports.drawing import escaped, tag


def html_page(
    title: str, *body: str, scripts: Sequence[str] = ("page.js",), data: Any = None, is_served: bool = False
) -> str:
    """A whole page that needs nothing else; it is well-formed XML too.

    `data` is what its scripts draw. The content security policy allows exactly these scripts, by their hash, so that
    nothing that a run, an environment or a file is called can ever be run as one. With `is_served` they may ask the
    page's own server for more.
    """
    code = files("shoal.reports")
    # XML sees a section of plain text, JavaScript two comments.
    script = "".join(code.joinpath(name).read_text(encoding="utf-8") for name in scripts)
    script = f"//<![CDATA[\n{script}//]]>"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=security_policy(script, is_served)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", escaped(title)),
        tag("style", code.joinpath("page.css").read_text(encoding="utf-8")),
    )
    parts = [*body, tag("div", " ", id="note", hidden="hidden", aria_live="polite")]
    if data is not None:
        parts.append(tag("script", json_text(data), type="application/json", id="data"))
    whole = tag("body", *parts, tag("script", script))
    return f"<!DOCTYPE html>\n{tag('html', head, whole, lang='en')}\n"


def security_policy(script: str, is_served: bool = False) -> str:
    """Nothing may be loaded from anywhere, but for what a page's own server has, and no script run but this one."""
    served = "connect-src 'self'; " if is_served else ""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        f"media-src data:; {served}base-uri 'none'; form-action 'none'"
    )


def json_text(data: Any) -> str:
    """JSON without a character that means anything in a page."""
    text = json.dumps(plain_json(data), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def filtered_table(head: Sequence[str], rows: Sequence[str], words: str = "") -> str:
    """A table whose columns sort, with a field that filters its rows where they are many; `words` say by what."""
    titles = [tag("th", tag("button", escaped(name), type="button"), scope="col") for name in head]
    inner = tag("thead", tag("tr", *titles)) + tag("tbody", *rows)
    table = tag("div", tag("table", inner, class_="wide"), class_="scroll", tabindex="0")
    if not words:
        return table
    field = tag("input", type="search", placeholder=words, aria_label=words, class_="filter")
    return tag("div", field, table, class_="filtered")


def cell(text: str, value: float | None = None, class_: str | None = None) -> str:
    """A cell that sorts by its text, or by a number."""
    return tag("td", escaped(text), data_v=None if value is None else repr(float(value)), class_=class_)


def figure_box(place: int, title: str, is_big: bool = False) -> str:
    """Where the page's script draws the figure of that number, with the buttons and the keys that it has."""
    tools = [
        tag("button", words, type="button", class_="tool", data_do=what, aria_pressed=pressed, title=title)
        for what, words, pressed, title in (
            ("log", "log", "false", "logarithmic scale (key l)"),
            ("svg", "SVG", None, "save the figure"),
            ("csv", "CSV", None, "save its data"),
        )
    ]
    heading = tag("h3", tag("span", escaped(title)), *tools)
    keys = "Left and right move the cursor, plus and minus zoom, 0 shows all, l is the logarithmic scale"
    box = tag("div", "", class_="box", tabindex="0", role="group", aria_label=f"{title}. {keys}")
    told = tag("figcaption", "", class_="told", aria_live="off")
    return tag("figure", heading, box, told, data_figure=place, class_="big" if is_big else None)


def figure_controls(before: Sequence[str] = (), after: Sequence[str] = ()) -> str:
    """The bar of what changes all figures at once."""
    slider = tag("input", type="range", name="smooth", min=1, max=51, step=2, value=1)
    smoothing = tag("label", "smoothing ", slider, tag("output", "1"))
    reset = tag("button", "Reset zoom", type="button", class_="tool", data_do="reset", disabled="disabled")
    parts = [*before, smoothing, reset, *after]
    return tag("div", *parts, id="controls", hidden="hidden", role="toolbar", aria_label="Figures")
