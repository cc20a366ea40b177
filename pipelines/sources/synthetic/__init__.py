"""Synthetic source: OCT-like scans that are drawn, in the shape of the real archive."""
