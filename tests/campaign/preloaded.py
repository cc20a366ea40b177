"""What a build imports, imported once for all the processes of the campaign."""

# ruff: noqa: F401
import gc

import builds
import numpy
import PIL.Image
import pyarrow.dataset

import pipelines.build_tfrecords
import pipelines.report.card
import pipelines.running.engine
import pipelines.running.transforms
import tfrecord_io.reading.mapped

PIL.Image.preinit()
gc.freeze()
