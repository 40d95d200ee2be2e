"""HTTP in, SSE out: the journey of a request through the stations."""
