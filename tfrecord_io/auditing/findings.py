"""What an audit finds, in words and numbers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal

Severity = Literal["problem", "warning", "note", "good"]

#: From the worst to the best, the order in which findings are listed.
SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "note", "good")

# Findings that make results doubtful as warnings, too.
_ALARMING_WARNINGS = ("near_label_conflict", "shortcuts")

# What to do about a finding, for those who read its title alone.
_ADVICE = {
    "patient_leak": "results will be too good; build with --splits patient",
    "picture_leak": "results will be too good; audit --output lists copies for build --exclude",
    "near_duplicates": "results will be too good; audit --output lists copies for build --exclude",
    "label_conflict": "audit --output lists them for build --exclude",
    "near_label_conflict": "look at these and correct the label that is wrong",
    "shortcuts": "a network may learn these instead of the disease; compare its results within one "
    "image size and one JPEG quality",
}

#: Largest number of cases that a finding lists.
MAX_LISTED = 20


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing found, or one check passed.

    Attributes:
        code: fixed name of the finding, such as `patient_leak`.
        severity: `problem` (results on this data would be misleading), `warning` (they may be),
            `note` (good to know) or `good` (looked for and not found).
        title: one short sentence with the number.
        detail: what the finding means and what to do.
        count: the number in the title.
        listed: cases, up to `MAX_LISTED` unless all were asked for, each a mapping of column to
            value.
    """

    code: str
    severity: Severity = dataclasses.field(kw_only=True)
    title: str
    detail: str
    count: int = 0
    listed: tuple[Mapping[str, Any], ...] = ()


problem = functools.partial(Finding, severity="problem")
warning = functools.partial(Finding, severity="warning")
note = functools.partial(Finding, severity="note")
good = functools.partial(Finding, severity="good")


@dataclasses.dataclass(frozen=True)
class Audit:
    """The findings, the worst first, and the numbers behind them, by name.

    `copies` are rows of a table for `build --exclude`: the `path` of an image, that of the one that
    it is a copy of, and the `kind` of copy.
    """

    findings: tuple[Finding, ...]
    measures: Mapping[str, Any]
    copies: tuple[Mapping[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values, as the manifest keeps them."""
        findings = [dataclasses.asdict(finding) for finding in self.findings]
        return {"measures": dict(self.measures), "findings": findings}


def alarms(audit: Mapping[str, Any]) -> list[str]:
    """Returns the findings of a manifest's audit that make results misleading, in a sentence each.

    Leaks, labels that contradict each other, and side facts that reveal the label, each with what
    to do. A sentence has no full stop.
    """
    return [
        "; ".join(filter(None, (f"the dataset's audit says: {finding['title']}", advice)))
        for finding in audit.get("findings", ())
        for advice in [_ADVICE.get(finding["code"])]
        if finding["severity"] == "problem"
        or (finding["severity"] == "warning" and finding["code"] in _ALARMING_WARNINGS)
    ]
