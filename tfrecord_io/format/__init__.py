"""The format of a dataset: records, manifest, table of examples, and what both say."""
