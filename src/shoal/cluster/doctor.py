"""What would break on these hosts: the findings of every check, one row each, ready to be shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shoal.cluster.host_checks import CHECKS, VERDICTS, Facts, HostFinding, Verdict

MOST_GROUPS = 3
"""So many different troubles of one kind are told apart; of more, the first is told as an example."""


@dataclass(frozen=True)
class CheckRow:
    """What one check says of every host."""

    check: str
    findings: Mapping[str, HostFinding]

    @property
    def verdict(self) -> Verdict:
        """The worst one of its hosts."""
        return max((finding.verdict for finding in self.findings.values()), key=VERDICTS.index)

    @property
    def remedies(self) -> list[str]:
        """What to type, the worst hosts' first, each once."""
        worst_first = sorted(self.findings.values(), key=lambda finding: -VERDICTS.index(finding.verdict))
        return list(dict.fromkeys(finding.remedy for finding in worst_first if finding.remedy))

    def lines(self) -> list[tuple[Verdict, str, str]]:
        """Verdict, hosts and detail, the worst first; hosts that agree are told together."""
        told: list[tuple[Verdict, str, str]] = []
        for verdict in reversed(VERDICTS):
            groups: dict[str, list[str]] = {}
            for host, finding in self.findings.items():
                if finding.verdict == verdict:
                    groups.setdefault(finding.detail, []).append(host)
            if len(groups) > (1 if verdict == "ok" else MOST_GROUPS):
                detail = "ok" if verdict == "ok" else f"such as: {next(iter(groups))}"
                groups = {detail: [host for hosts in groups.values() for host in hosts]}
            told.extend((verdict, folded(hosts), detail) for detail, hosts in groups.items())
        return told


def rows(all_facts: Mapping[str, Facts]) -> list[CheckRow]:
    """Every check over every host; a host whose facts are only an `error` has not answered.

    Who asked adds `asked_at` and `answered_at` by its own clock, and `reached_by`, the address that was used, if any.
    """
    heard = {host: facts for host, facts in all_facts.items() if "error" not in facts}
    made = [CheckRow(name, check(heard)) for name, check in CHECKS.items()]
    if len(heard) < len(all_facts):
        made.insert(0, CheckRow("answer", {host: _answer(facts) for host, facts in all_facts.items()}))
    return [row for row in made if row.findings]


def folded(names: Iterable[str]) -> str:
    """Host names as schedulers write them: n1, n2, n3 and gpu07 are `n[1-3],gpu07`."""
    alike: dict[tuple[str, str, bool], list[str]] = {}
    for name in dict.fromkeys(names):
        # Of an address the last number counts, of a name the last one before its domain.
        found = re.fullmatch(r"([\d.]+\.)(\d+)()", name) or re.fullmatch(r"([^.]*?)(\d+)([^.\d]*(?:\..*)?)", name)
        front, number, back = found.groups() if found else (name, "", "")
        alike.setdefault((front, back, found is None), []).append(number)
    return ",".join(front + _brackets(numbers) + back for (front, back, _), numbers in alike.items())


def _brackets(numbers: list[str]) -> str:
    if len(numbers) == 1:
        return numbers[0]
    runs: list[list[str]] = []
    for number in sorted(numbers, key=lambda number: (len(number), number)):
        if runs and number == str(int(runs[-1][-1]) + 1).zfill(len(runs[-1][-1])):
            runs[-1].append(number)
        else:
            runs.append([number])
    return "[" + ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) + "]"


def _answer(facts: Facts) -> HostFinding:
    if "error" not in facts:
        return HostFinding("ok", "answers")
    return HostFinding("bad", facts["error"], "log in to that host (ssh HOST) and type shoal doctor there")
