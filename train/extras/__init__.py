"""Optional features of the trainer, one file each."""
