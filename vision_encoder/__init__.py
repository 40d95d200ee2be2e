"""Pixels to embeddings. Reserved: nothing runs here yet."""
