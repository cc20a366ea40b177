"""The trainer: its commands and what they share; the rest is in five rooms."""
