"""The build job: image collections in, TFRecords out."""
