"""KV blocks by identity. Reserved: nothing runs here yet."""
