"""Options of what is measured at the end of a run."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tfrecord_io.terminal import flags
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.flags import flag


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThresholdOptions:
    """What is taken from the validation split for those who use the network."""

    sensitivity: float = flag(
        0.95,
        "sensitivity that the thresholds of metrics.json reach on the validation split",
        least=0,
        most=1,
        above=0,
        is_operational=True,
    )
    __post_init__ = flags.check


class MeasurePlan(NamedTuple):
    """How answers are measured.

    Attributes:
        num_samples: bootstrap resamples for each interval.
        columns: those of examples.parquet whose values are measured by themselves.
        prevalences: of the views that have one, by name.
    """

    num_samples: int
    columns: Sequence[str] = ()
    prevalences: Mapping[str, float] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """How predictions are measured, by train/run.py and train/evaluate.py."""

    bootstrap_samples: int = flag(
        1000, "bootstrap resamples for each confidence interval", least=0, is_operational=True
    )
    prevalence: str = flag(
        "",
        "share of positives where the model is to be used, for the predictive values (PPV, NPV): "
        "one number, or one for each class, such as CNV=0.02,DME=0.01",
        metavar="X",
        is_operational=True,
    )
    by: str = flag(
        "",
        "columns of examples.parquet, such as device,age: the measures of each value alone",
        metavar="COLUMN",
        is_operational=True,
    )

    __post_init__ = flags.check

    @property
    def columns(self) -> list[str]:
        """The columns that `by` names, each once."""
        return list(dict.fromkeys(_cells(self.by)))

    def decided(self, views: Sequence[str]) -> MeasurePlan:
        """Returns how the answers to the questions of these names are measured.

        Raises:
            UserError: if a prevalence is not between 0 and 1, or names something else or again.
        """
        shares: dict[str, float] = {}
        for cell in _cells(self.prevalence):
            name, is_named, text = cell.rpartition("=")
            try:
                share = float(text)
            except ValueError:
                share = -1
            those = [name] if is_named else views
            left = {*views} - shares.keys()
            if not those or not left.issuperset(those) or not 0 < share < 1:
                raise UserError(
                    "--prevalence: expected a number between 0 and 1, or one such number for some "
                    f"of {', '.join(views)}; received {self.prevalence!r}"
                )
            shares |= dict.fromkeys(those, share)
        return MeasurePlan(self.bootstrap_samples, self.columns, shares)


def _cells(text: str) -> list[str]:
    """Returns the parts between commas; a part in quotes may have commas, as in CSV."""
    return next(csv.reader([text])) if text else []
