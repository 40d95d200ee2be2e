"""The gRPC contract: protos and what protoc makes of them."""
