"""Turns the bytes of a file into pixels: Pillow, DICOM, TIFF."""
