"""What a build imports, imported once for all the processes of the campaign."""

import gc

import builds  # noqa: F401
import numpy  # noqa: F401

import tfrecord_io.reading.mapped  # noqa: F401

gc.freeze()
