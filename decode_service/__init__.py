"""KV to tokens: fetches a prompt's KV and runs the engine as decode or hybrid."""
