"""Kaggle source: downloads a dataset's whole archive, checks it and keeps it."""
