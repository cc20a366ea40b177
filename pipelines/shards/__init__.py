"""What is made of a plan: shards with their sidecars, and the finished dataset."""
