"""A grade for each image: learned as classes, judged by how far off it is."""

from __future__ import annotations

from tfrecord_io.kinds import grades
from train.kinds import scores, stories
from train.kinds.classes import Classes


class Grades(Classes):
    """A grade for each image: learned as classes, judged by how far off it is."""

    kind, story, measured_by = grades.GRADES, stories.GradeStory(), scores.GradeScorer


GRADES = Grades()
