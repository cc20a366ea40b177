"""The job, its Beam transforms, and the engines that run them."""
