"""Optional features of a build, a module each; `pipelines/build_tfrecords.py` calls them."""
