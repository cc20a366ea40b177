"""Files on local disks and object stores: reads byte ranges, writes whole files, and locks."""
