"""Kaggle source: a dataset's whole archive, through the official client, kept and checked."""
