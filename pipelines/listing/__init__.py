"""Which files are images, and the class, patient and split of each.

No image is read here; `listing.frames` adds what is inside files of several images.
"""
