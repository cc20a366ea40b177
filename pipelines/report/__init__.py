"""The reports of a build: the dataset's card and the summary in the terminal."""
