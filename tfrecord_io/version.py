"""The version of the packages; setup.py reads it from here."""

VERSION = "1.0.0"
