"""GPU operations, one folder each: kernel, reference, benchmark."""
