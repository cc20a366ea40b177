"""The plan: which image goes into which record of which shard, decided before any pixel is read.

>>> shard_counts(10, 4)
[2, 3, 2, 3]

The plan depends only on the listing and the options, so it is the same on every machine. It is
written to the output folder as an Arrow file with one batch per shard. A worker reads only the few
kilobytes of its own task, so neither Beam's graph nor a worker's memory grows with the data.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import errors
from pipelines.planning.splits import LARGEST_SEED
from pipelines.stores.output_folder import PLAN_FILE, PLAN_JSON
from tfrecord_io.decoding import augment
from tfrecord_io.format import manifest
from tfrecord_io.format.hashing import splitmix64
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal.flags import check, flag

# Size of a shard in megabytes: large enough that a network store streams it at full speed (tens of
# megabytes), small enough that the Kermany data gives about 70 tasks to share.
_SHARD_SIZE_MB = 64

#: For more augmented copies than this, augment in the trainer, which makes new ones in each epoch.
MAX_VARIANTS = 100

#: A split with fewer than `_MIN_SHARDS` shards of the default size gets smaller shards, so that
#: all cores get work, but each has at least `_MIN_SHARD_EXAMPLES` images.
_MIN_SHARDS = 16
_MIN_SHARD_EXAMPLES = 64

_AUGMENTED_SPLIT = "train"

# Key of the fingerprint in the metadata of the plan file's schema.
_FINGERPRINT_KEY = b"fingerprint"

# Other splits follow these, by name.
_RANKS = {"train": 0, "val": 1, "test": 2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """How the images are shuffled and cut into shards.

    Raises:
        ValueError: if a value is wrong, or two options contradict each other.
    """

    seed: int = flag(0, "seed of the shuffle and of synthetic images", least=0, most=LARGEST_SEED)
    limit: int | None = flag(
        None, "use at most N images of each split, drawn by the seed, for a trial", least=1
    )
    variants: int = flag(
        0,
        "augmented copies of each image of the train split, made once: mirrored, rotated and "
        "shifted a little, brighter or darker, with speckle",
        least=0,
        most=MAX_VARIANTS,
        metavar="K",
    )
    num_shards: int | None = flag(
        None,
        "number of shards of the largest split; the other splits get proportionally fewer "
        f"(default: of {_SHARD_SIZE_MB} MB each, or smaller so that all cores get work)",
        least=1,
    )

    def __post_init__(self) -> None:
        check(self)

    def identity(self) -> dict[str, Any]:
        """Returns what decides the order and the shards, by flag."""
        recipe = dict(augment.RECIPE) if self.variants else None
        return dataclasses.asdict(self) | {"augmentation": recipe}


@dataclasses.dataclass(frozen=True)
class ShardTask:
    """One element of the Beam job: one shard to write.

    Attributes:
        index: number of the task, and of its batch in the plan file.
        split: name of the split.
        shard_index: number of the shard in its split.
        num_shards: number of shards of the split.
        num_refs: number of images planned into the shard; without the rejects it holds fewer.
    """

    index: int
    split: str
    shard_index: int
    num_shards: int
    num_refs: int

    @property
    def shard_name(self) -> str:
        """Name of the shard file."""
        return manifest.shard_name(self.split, self.shard_index, self.num_shards)


def write_refs(
    file: IO[bytes], refs: pa.Table, tasks: Sequence[ShardTask], fingerprint: str
) -> None:
    """Writes the rows of a plan as an Arrow IPC file with one record batch per task."""
    refs = refs.replace_schema_metadata({_FINGERPRINT_KEY: fingerprint})
    with pa.ipc.new_file(file, refs.schema) as writer:
        start = 0
        for task in tasks:
            # An Arrow file allows one dictionary per column, so the batches are slices of it.
            writer.write_table(refs.slice(start, task.num_refs))
            start += task.num_refs


def read_task_refs(file: pa.NativeFile, task: ShardTask, fingerprint: str) -> pa.RecordBatch:
    """Returns a task's rows of the file that `write_refs` wrote.

    Raises:
        errors.BuildError: if the plan has another fingerprint, so that it is another build's.
    """
    reader = pa.ipc.open_file(file)
    _require_own((reader.schema.metadata or {}).get(_FINGERPRINT_KEY, b"").decode(), fingerprint)
    return reader.get_batch(task.index)


def _require_own(other: str, fingerprint: str) -> None:
    """Raises if a plan in the output has the fingerprint of another build.

    Another launcher can replace the plan if the output has no lock, as on an object store.
    """
    if other != fingerprint:
        raise errors.BuildError(
            f"the plan in the output belongs to build {other[:12] or 'unknown'}, but this build is "
            f"{fingerprint[:12]}: another command writes to the same --output. Stop one of the "
            "two, and run the other again"
        )


def write_plan(
    storage: Folder, draft: manifest.Manifest, tasks: Sequence[ShardTask], refs: pa.Table
) -> None:
    """Writes a plan to the output folder, for `read_tasks`, `read_task_refs` and a later run.

    `tasks` and `refs` are those of `make_plan`; `draft` has the identity and the fingerprint.
    """
    with storage.create(PLAN_FILE) as file:
        write_refs(file, refs, tasks, draft.fingerprint)
    content = {
        "fingerprint": draft.fingerprint,
        "identity": draft.options,
        "tasks": [dataclasses.astuple(task) for task in tasks],
    }
    storage.write(PLAN_JSON, json.dumps(content).encode())
    # After a power cut, the next run would refuse shards that have no plan.
    storage.sync_names()


def read_tasks(storage: Folder, fingerprint: str) -> list[ShardTask]:
    """Returns all tasks of the plan that `write_plan` left in an output folder.

    Raises:
        errors.BuildError: if the plan has another fingerprint, so that it is another build's.
    """
    planned = json.loads(storage.read(PLAN_JSON))
    _require_own(planned["fingerprint"], fingerprint)
    return [ShardTask(*values) for values in planned["tasks"]]


def make_plan(
    refs: pa.Table, record_stride: int, options: PlanOptions
) -> tuple[pa.Table, tuple[ShardTask, ...]]:
    """Shuffles all images of each split and cuts the split into shards of equal size (±1 image).

    Args:
        refs: the images with their final splits, a table of `REF_SCHEMA`.
        record_stride: size of a record in bytes.
        options: seed, shard size, limit and variants.

    Returns:
        the images in the order of their records, with a column `variant` (int32), the number of
        the augmented copy, 0 for the image itself; and the tasks in the same order, which together
        cover them exactly.

    Raises:
        errors.UserError: if there should be variants, and no image is in the split train.
    """
    names = refs["split"].cast(pa.string())
    ranks = _random_ranks(refs.num_rows, options.seed)
    rows_of: dict[str, np.ndarray] = {}
    variants: list[np.ndarray] = []
    if options.variants and _AUGMENTED_SPLIT not in names.unique().to_pylist():
        raise errors.UserError("--variants makes copies of the split train, and there is none")
    for split in sorted(names.unique().to_pylist(), key=lambda name: (_RANKS.get(name, 3), name)):
        rows = np.flatnonzero(pc.equal(names, split).to_numpy())
        rows = rows[np.argsort(ranks[rows], kind="stable")][: options.limit]
        variant = np.zeros(len(rows), np.int32)
        if options.variants and split == _AUGMENTED_SPLIT:
            copies = options.variants + 1
            # Shuffled again, so that the copies of an image are apart.
            again = np.argsort(_random_ranks(len(rows) * copies, options.seed), kind="stable")
            variant = np.tile(np.arange(copies, dtype=np.int32), len(rows))[again]
            rows = np.repeat(rows, copies)[again]
        rows_of[split] = rows
        variants.append(variant)
    tasks: list[ShardTask] = []
    largest = max(map(len, rows_of.values()))
    for split, rows in rows_of.items():
        num_shards = _num_shards(len(rows), largest, record_stride, options)
        for shard_index, num_refs in enumerate(shard_counts(len(rows), num_shards)):
            tasks.append(ShardTask(len(tasks), split, shard_index, num_shards, num_refs))
    planned = refs.take(np.concatenate(list(rows_of.values())))
    planned = planned.append_column("variant", pa.array(np.concatenate(variants)))
    return planned.combine_chunks(), tuple(tasks)


def shard_counts(num_examples: int, num_shards: int) -> list[int]:
    """Returns the number of examples of each shard: equal, with the remainder spread evenly."""
    bounds = [num_examples * index // num_shards for index in range(num_shards + 1)]
    return [end - start for start, end in itertools.pairwise(bounds)]


def _random_ranks(num_rows: int, seed: int) -> np.ndarray:
    """Returns pseudo-random uint64 [num_rows], the same for a seed in every version.

    NumPy may change the stream of its generators' `permutation` (NEP 19), so the shuffle sorts by
    SplitMix64 of the row's number (Steele, Lea, Flood 2014, OOPSLA, fig. 16).
    """
    with np.errstate(over="ignore"):
        start = splitmix64(np.array([seed], np.uint64))
        return splitmix64(start + np.arange(num_rows, dtype=np.uint64))


def _num_shards(
    num_examples: int, largest_split: int, record_stride: int, options: PlanOptions
) -> int:
    if options.num_shards:
        share = options.num_shards * num_examples / largest_split
        return min(max(1, round(share)), num_examples)
    by_size = math.ceil(num_examples * record_stride / (_SHARD_SIZE_MB * 1_000_000))
    return max(by_size, min(_MIN_SHARDS, num_examples // _MIN_SHARD_EXAMPLES), 1)
