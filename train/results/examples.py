"""Answers that the page of a result shows with their images: mistakes, sure and unsure ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image

from tfrecord_io.format import visible
from tfrecord_io.pages.pictures import data_url
from train.kinds.task import OneAnswer
from train.results.predictions import Predictions

#: Stored images [num_images, height, width, channels] → probabilities [num_images, num_classes].
Predict = Callable[[np.ndarray], np.ndarray]

#: Most mistakes that are shown; their pictures take most of a page's bytes.
MAX_MISTAKES = 12

#: Most mistakes that are explained, which takes most of the time of a page.
MAX_EXPLAINED = 4

# Pictures up to this side are shown to the pixel, larger ones as JPEG, which takes fewer bytes.
_EXACT_SIDE, _PICTURE_SIDE = 224, 512


class Explanation(NamedTuple):
    """What is shown beside mistakes.

    Attributes:
        legend: HTML that tells how to read the pictures.
        pictures: a stored image and the answer to it → more pictures, by what they show.
    """

    legend: str
    pictures: Callable[[np.ndarray, OneAnswer], dict[str, Image.Image]]


#: The function that gave the answers → the explanation.
Explain = Callable[[Predict], Explanation]


class ShownAnswer(NamedTuple):
    """An answer, its pictures by what they show, and the image's path or key."""

    answer: OneAnswer
    pictures: dict[str, Image.Image]
    path: str

    def urls(self) -> dict[str, str]:
        """Returns the data URLs of its pictures by what they show."""
        side = max(max(picture.size) for picture in self.pictures.values())
        kind = "PNG" if side <= _EXACT_SIDE else "JPEG"
        return {what: data_url(each, _PICTURE_SIDE, kind) for what, each in self.pictures.items()}


def find_examples(
    predictions: Predictions, explanation: Explanation | None = None
) -> dict[str, list[ShownAnswer]]:
    """Returns the images of `Task.examples`; the explanation is of the first mistakes."""
    examples = {}
    for name, answers in predictions.task.examples(predictions, MAX_MISTAKES).items():
        if not answers:
            continue
        shown = predictions.some(np.array([answer.place for answer in answers]))
        images = shown.dataset.stored[shown.rows][0]
        rows = zip(answers, images, shown.values("path"), shown.values("key"), strict=True)
        examples[name] = []
        for place, (answer, image, path, key) in enumerate(rows):
            pictures = {"what the network sees": visible.picture(image)}
            if explanation and name == "wrong" and place < MAX_EXPLAINED:
                pictures |= explanation.pictures(image, answer)
            examples[name].append(ShownAnswer(answer, pictures, path or key))
    return examples
