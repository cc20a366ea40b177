"""A build on an engine: the job, its Beam transforms, and what runs them."""
