"""A split in the memory of the accelerator: batches are gathered where they are used."""


def cached_on_device(*a, **k):
    return None
