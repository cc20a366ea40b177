"""Which files are images, and the class, patient and split of each."""
