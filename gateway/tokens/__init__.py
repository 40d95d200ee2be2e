"""Text to token ids and back, and prompts as the model would read them. Nothing is generated."""
