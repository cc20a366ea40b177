"""Outputs, losses, and what predictions are worth in numbers and words, by the kind of label."""
