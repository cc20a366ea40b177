"""Writes the shards of a plan with their sidecars, and finishes the dataset."""
