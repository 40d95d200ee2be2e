"""Prompt to KV: runs the engine as prefill and keeps the blocks until they are fetched."""
