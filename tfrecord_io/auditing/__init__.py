"""Finds leaks, duplicates and contradicting labels in a dataset."""
