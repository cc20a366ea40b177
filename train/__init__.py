"""The trainer: its commands, and the packages that they share."""

from tfrecord_io.terminal.flags import require

require("train", "jinja2", "keras", "matplotlib", "PIL", "scipy", "sklearn", "tqdm")
