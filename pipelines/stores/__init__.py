"""The output folder: its options and its state; and Beam's flags for stores."""
