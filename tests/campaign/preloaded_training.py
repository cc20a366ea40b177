"""What a training imports, imported once for all the processes of the campaign.

Nothing is computed here: TensorFlow starts its threads with the first operation, and they would not
be there after a fork.
"""

# ruff: noqa: E402, F401
import gc

from train import run
from train.machine import console

console.set_defaults()

import pyarrow.dataset
import tensorboard.plugins.scalar.summary_v2
import tensorflow.saved_model

import tfrecord_io.reading.reader
import train.training.trainer

gc.freeze()
