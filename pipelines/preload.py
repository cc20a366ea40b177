"""What a worker imports, in the process that workers are forked from."""

import gc
import logging

# What is imported stays: no worker looks for garbage in it, nor copies its pages by looking.
gc.disable()

# Before Beam is imported: it logs on import that a library for another product is missing.
logging.getLogger().addHandler(logging.NullHandler())

import apache_beam.runners.worker.sdk_worker_main  # noqa: E402, F401

import pipelines.build_tfrecords  # noqa: E402 - it is each worker's main module
import pipelines.report.card  # noqa: E402 - the worker that finishes the dataset needs it

pipelines.report.card.page_template()
gc.freeze()
gc.enable()
