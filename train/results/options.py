"""Options of what is measured at the end of a run."""

from __future__ import annotations

import dataclasses

from tfrecord_io import flags
from tfrecord_io.flags import flag


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """How predictions are measured."""

    sensitivity: float = flag(
        0.95,
        "sensitivity that the thresholds of metrics.json reach on the validation split",
        above=0,
        is_operational=True,
    )
    bootstrap_samples: int = flag(
        1000, "bootstrap resamples for each confidence interval", least=0, is_operational=True
    )

    def __post_init__(self) -> None:
        flags.check(self)
        if self.sensitivity > 1:
            raise ValueError(f"--sensitivity must be at most 1; received {self.sensitivity}")
