"""Decided before any image is read: splits, shards, and what the output still lacks."""
