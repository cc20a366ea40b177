"""The build job, which turns image collections into TFRecords."""

from tfrecord_io.terminal.installed import require

require("build")
