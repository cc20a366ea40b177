"""Which examples a run uses, and how their batches reach a training step."""
