"""The files of a run's folder that the trainer writes; nothing else is ever replaced or removed."""

from __future__ import annotations

import re

#: Names of these files below the folder. A cross-validation has the same in RUN/seed-S/fold-F, and
#: an evaluation on another dataset its results in RUN/evaluation.
OWN_FILES = re.compile(
    r"((seed-\d+/fold-\d+|evaluation/[^/]+)/)?(config|history|metrics)\.json"
    r"|((seed-\d+/fold-\d+|evaluation/[^/]+)/)?(report\.html|predictions\.(csv|npz)|plots/\w+\.svg)"
    r"|(seed-\d+/fold-\d+/)?((checkpoint|best)\.npz|seen\.parquet)"
    r"|(seed-\d+/fold-\d+/)?export/(model\.(keras|weights\.h5|onnx)|features\.npz|README\.md"
    r"|(architecture|preprocessing|thresholds)\.json|saved_model/.*)"
    r"|(seed-\d+/fold-\d+/)?(tensorboard/events\.out\.tfevents\..*|profile/plugins/.*)"
)
