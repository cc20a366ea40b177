"""The sources of images."""
