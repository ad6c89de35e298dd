"""How Sphinx makes the documentation: `make docs` writes it to `build/docs`, and a warning is an error.

Pages are Markdown (MyST). Those below `reference/` are written from the code whenever the site is made, by
`reference_pages.py`: what a key, a command, a result or a class is has one description, which stands in the code.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

import reference_pages  # noqa: E402
from docutils import nodes  # noqa: E402
from docutils.utils.math.latex2mathml import tex2mathml  # noqa: E402

from shoal.version import __version__  # noqa: E402

project = "shoal"
author = "the shoal authors"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["README.md"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
smartquotes = False  # --option is typed as it stands
autodoc_typehints = "signature"
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = f"shoal {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_math_renderer = "mathml"
copybutton_prompt_text = r"\$ "

OUTSIDE = re.compile(r"\]\(((?:\.\./)+[^)#]+\.md)(#[^)]*)?\)")  # a file has no places that can be linked to


def link_to_file(app: Any, docname: str, source: list[str]) -> None:  # noqa: ARG001
    """Link Markdown files that are no pages of the site as files, and places in the code to their lines."""
    page = DOCS / f"{docname}.md"

    def linked(match: re.Match[str]) -> str:
        is_page = (page.parent / match[1]).resolve().is_relative_to(DOCS)
        return match[0] if is_page else f"](path:{match[1]})"

    source[0] = OUTSIDE.sub(linked, source[0])
    to_docs = "../" * docname.count("/")
    source[0] = reference_pages.PLACE.sub(lambda place: reference_pages.link_to_code(place, to_docs), source[0])


def draw_math(translator: Any, node: Any) -> None:
    """Write a formula as MathML, which browsers draw themselves: a page that is read offline cannot fetch MathJax."""
    is_block = isinstance(node, nodes.math_block)
    formula = tex2mathml(node.astext(), as_block=is_block)
    translator.body.append(f"<p>{formula}</p>" if is_block else formula)
    raise nodes.SkipNode


def setup(app: Any) -> None:
    """Write the reference before pages are read."""
    reference_pages.write(DOCS / "reference")
    app.add_html_math_renderer("mathml", (draw_math, None), (draw_math, None))
    app.connect("source-read", link_to_file)
