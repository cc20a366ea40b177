"""Mistakes that the page of a result shows with their images."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image

from tfrecord_io.pages.page import data_url, picture
from train.kinds.task import OneAnswer
from train.results.predictions import Predictions

#: Stored images [num_images, height, width, channels] → probabilities [num_images, num_classes].
Predict = Callable[[np.ndarray], np.ndarray]

#: Most mistakes that are shown, whose pictures take most of a page's bytes, and explained.
MAX_MISTAKES, MAX_EXPLAINED = 12, 4

#: What the first picture of a mistake shows.
SEEN = "what the network sees"

# Pictures up to this side are shown to the pixel, larger ones as JPEG, which takes fewer bytes.
_EXACT_SIDE, _PICTURE_SIDE = 224, 512


class Explanation(NamedTuple):
    """What is shown beside mistakes: pictures of this caption, and HTML on how to read them.

    `picture` takes a stored image and the answer to it.
    """

    caption: str
    legend: str
    picture: Callable[[np.ndarray, OneAnswer], Image.Image]


class ShownAnswer(NamedTuple):
    """An answer, its pictures by what they show, and the image's path or key."""

    answer: OneAnswer
    pictures: dict[str, Image.Image]
    path: str

    @property
    def text(self) -> str:
        return f"truth {self.answer.true}, answer {self.answer.predicted}, {self.path}"

    def urls(self) -> dict[str, str]:
        """Returns the data URLs of its pictures by what they show."""
        side = max(max(picture.size) for picture in self.pictures.values())
        kind = "PNG" if side <= _EXACT_SIDE else "JPEG"
        return {what: data_url(each, _PICTURE_SIDE, kind) for what, each in self.pictures.items()}


def find_mistakes(
    predictions: Predictions,
    explanation: Explanation | None = None,
    num_explained: int = MAX_EXPLAINED,
) -> list[ShownAnswer]:
    """Returns the mistakes of a page with their images; the explanation is of the first ones."""
    answers = predictions.task.mistakes(predictions, MAX_MISTAKES)
    shown = predictions.take(np.array([answer.place for answer in answers], int))
    images = shown.dataset.stored[shown.rows][0] if answers else ()
    rows = zip(answers, images, shown.values("path"), shown.values("key"), strict=True)
    mistakes = []
    for answer, image, path, key in rows:
        pictures = {SEEN: picture(image)}
        if explanation and len(mistakes) < num_explained:
            pictures[explanation.caption] = explanation.picture(image, answer)
        mistakes.append(ShownAnswer(answer, pictures, path or key))
    return mistakes
