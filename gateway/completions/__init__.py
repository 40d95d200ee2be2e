"""`POST /v1/completions`: text that goes on, or a hole in it that is filled."""
