"""What is decided before any image is decoded: the splits, the shards and the manifest's draft."""
