"""Synthetic source: drawn OCT-like scans, in the folder structure of the Kermany archive."""
