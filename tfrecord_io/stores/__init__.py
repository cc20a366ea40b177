"""Files and folders on disks and object stores: atomic writes, ranges, credentials and retries."""
