"""Powers beside the way of a training, each one file: delete it and its lines in `powers.py`."""
