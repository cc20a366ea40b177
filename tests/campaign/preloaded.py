"""What a build imports, imported once for all the processes of the campaign."""

# ruff: noqa: F401
import gc

import builds
import numpy
import PIL.Image
import pyarrow.dataset

import pipelines.build_tfrecords
import pipelines.engine.engine
import pipelines.report.card
import tfrecord_io.reading.batches
import tfrecord_io.stores.remote

PIL.Image.preinit()
gc.freeze()
