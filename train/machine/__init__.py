"""The machine of a run: its devices, console and versions."""
