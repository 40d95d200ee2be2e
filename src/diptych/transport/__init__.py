"""gRPC plumbing: servers, channels, block frames, error translation."""
