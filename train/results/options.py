"""Options of what is measured at the end of a run."""

from __future__ import annotations

import dataclasses

from tfrecord_io.terminal import flags
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """How predictions are measured, by train/run.py and train/evaluate.py."""

    bootstrap_samples: int = flag(
        1000, "bootstrap resamples for each confidence interval", least=0, is_operational=True
    )
    by: str = flag(
        "",
        "columns of examples.parquet, such as device,sex: the measures of each value alone",
        metavar="COLUMN",
        is_operational=True,
    )

    __post_init__ = flags.check

    @property
    def columns(self) -> list[str]:
        """The columns that `by` names, each once."""
        return list(dict.fromkeys(filter(None, self.by.split(","))))
