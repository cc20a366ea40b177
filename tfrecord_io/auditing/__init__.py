"""Finds leaks, duplicates, contradicting labels and shortcuts in a dataset."""
