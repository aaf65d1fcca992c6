"""Side-by-side runs of decamp and the copy tools people use, against the same S3 server on the same machine."""
