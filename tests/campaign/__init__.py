"""A search for faults: seeded cases by the thousand, each of which can be replayed alone."""
