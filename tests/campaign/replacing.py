"""Builds that replace a dataset, and are refused, killed or disturbed meanwhile."""

import dataclasses
import shutil

from campaign import kills
from campaign.case import Case
from campaign.faults import FAULTS, kill
from campaign.processes import undisturbed

#: Flags that are refused at different points of a build's preparation.
_REFUSED = (
    "--keep_split=valid",
    "--classes=AMD,CNV",
    "--rescale=2,-100",
    "--exclude_regex=.",
    "--reuse=nowhere",
    "--labels=nowhere.csv",
    "--num_shards=0",
)


def try_replacing(case: Case) -> str:
    """Replaces one build by another, and requires that the old or the new one is whole."""
    first, second = case.rng.sample(kills.ALL, 2)
    old, job = (undisturbed(kills.build_job, number) for number in (first, second))
    again = kills.build_job(case.folder, second).like(job)
    overwriting = dataclasses.replace(again, words=[*again.words, "--overwrite"])
    shutil.copytree(old.folder / "output", case.folder / "output")
    case.what = f"{' '.join(old.words)}, then {' '.join(overwriting.words)}"
    if case.happens(0.3):
        flag = case.pick(*_REFUSED)
        code, text = dataclasses.replace(again, words=[*overwriting.words, flag]).run()
        case.require_message(text, code)
        case.require(code == 2, f"{flag} ends with {code}: {text}")
        case.compare("other than before", again.found(), old.wanted)
        return "refused"
    way = case.pick(kill, kill, kill, *FAULTS)
    for _ in range(case.pick(1, 1, 2)):
        code, text = way(case.rng, overwriting)
        case.require_message(text, code)
    code, text = again.run()
    is_old = code == 2 and "holds a dataset that differs" in text
    case.require(is_old or not code, f"the next run ends with {code}: {text}")
    case.compare("neither old nor new", again.found(), (old if is_old else job).wanted)
    return f"{way.__name__.strip('_')}: {'old' if is_old else 'new'}"
