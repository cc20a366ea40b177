"""Powers beside the way, each a command of one file: delete it and its lines in `__main__.py`."""
