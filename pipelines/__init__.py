"""The build job, which turns image collections into TFRecords."""

from tfrecord_io.terminal.flags import require

require("build", "apache_beam", "deflate", "jinja2", "PIL", "psutil", "tqdm")
