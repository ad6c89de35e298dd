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


def html_page(title: str, *body: str, scripts: Sequence[str] = ("page.js",), data: Any = None) -> str:
    """A whole page that needs nothing else; it is well-formed XML too.

    `data` is what its scripts draw. The content security policy allows exactly these scripts, by their hash, so that
    nothing that a run, an environment or a file is called can ever be run as one.
    """
    code = files("shoal.reports")
    # XML sees a section of plain text, JavaScript two comments.
    script = "".join(code.joinpath(name).read_text(encoding="utf-8") for name in scripts)
    script = f"//<![CDATA[\n{script}//]]>"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=security_policy(script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", escaped(title)),
        tag("style", code.joinpath("page.css").read_text(encoding="utf-8")),
    )
    parts = [*body, tag("div", " ", id="note", hidden="hidden", aria_live="polite")]
    if data is not None:
        parts.append(tag("script", json_text(data), type="application/json", id="data"))
    whole = tag("body", *parts, tag("script", script))
    return f"<!DOCTYPE html>\n{tag('html', head, whole, lang='en')}\n"


def security_policy(script: str) -> str:
    """Nothing may be loaded from anywhere, and no script run but this one."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
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
