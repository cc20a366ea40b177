"""Files on local disks and object stores: reading ranges, writing whole files, locking."""
