"""Finished datasets become batches, in an order that the seed decides."""
