"""The trainer: its commands, and the packages that they share."""

from tfrecord_io.terminal.command import require

require("train")
