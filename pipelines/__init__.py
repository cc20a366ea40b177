"""The build job, which turns image collections into TFRecords."""

from tfrecord_io.terminal.command import require

require("build")
