"""The build job, which turns image collections into TFRecords."""
