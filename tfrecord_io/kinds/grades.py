"""One grade for each example: classes whose names are in ascending order."""

from __future__ import annotations

from tfrecord_io.kinds.classes import Classes


class Grades(Classes):
    """Each example has one grade."""

    name, format_version, noun, plural, flag = "grade", 2, "grade", "grades", "--grades"


GRADES = Grades()
