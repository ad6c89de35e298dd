"""What the pages of the documentation tell people to type: their command lines and their programs."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATTERNS = ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/*.md")
GENERATED = ("docs/reference/", "docs/_build/")
PROGRAMS = (
    r"\.|apptainer|bsub|cc|cd|conda|curl|docker|eval|export|gcc|gfortran|git|make|mpiexec|mpirun|pip|pipx|podman|"
    r"pre-commit|pytest|python|python3|qsub|rattler-build|ray|salloc|sbatch|shoal|source|srun|ssh|uv|uvx"
)
FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(rf"^(?:\$ )?((?:[A-Z_]+=(?:\S* +|\$\())*(?:\S*/)?(?:{PROGRAMS})(?: .*)?)$")
INLINE = re.compile(r"(?<!`)`(shoal [^`\n]+)`(?!`)")
CONNECTORS = {"|", ">", "&", ";"}


@dataclass(frozen=True)
class Page:
    """A page, by its place in the project."""

    name: str

    @property
    def text(self) -> str:
        """All of it."""
        return (ROOT / self.name).read_text()

    def blocks(self, language: str) -> list[str]:
        """The fenced blocks of a language, without the indentation that they all have."""
        found = FENCE.findall(self.text)
        return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, of, text in found if of == language]

    def languages(self) -> list[str]:
        """The language of each fenced block; of what is shown or drawn it is empty."""
        return [language for _, language, _ in FENCE.findall(self.text)]

    def typed(self) -> list[str]:
        """The lines that are typed, without comments: indented ones, and those of blocks of no language."""
        lines = self._indented() + [
            line for kind in ("", "text") for text in self.blocks(kind) for line in text.splitlines()
        ]
        return [re.split(r"\s+# ", match[1])[0].strip() for line in lines if (match := COMMAND.match(line))]

    def shown(self) -> list[str]:
        """Indented lines that no program begins: what a command answers, or a file."""
        return [line for line in self._indented() if line.strip() and not COMMAND.match(line)]

    def _indented(self) -> list[str]:
        return [line[4:] for line in FENCE.sub("", self.text).splitlines() if line.startswith("    ")]

    def inline(self) -> list[str]:
        """What stands in backticks in a sentence or a table and begins with `shoal`."""
        return INLINE.findall(FENCE.sub("", self.text))


def pages() -> list[Page]:
    """Every page of the project but those that are made with the site."""
    found = {str(path.relative_to(ROOT)) for pattern in PATTERNS for path in ROOT.glob(pattern)}
    return [Page(name) for name in sorted(found) if not name.startswith(GENERATED)]


def words_of(line: str) -> list[str]:
    """The words of a command, up to where a shell would connect it with something else."""
    words = shlex.split(line)
    ends = [at for at, word in enumerate(words) if word in CONNECTORS]
    return words[: ends[0]] if ends else words
