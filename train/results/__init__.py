"""What a run leaves to read: its page, plots and tables."""
