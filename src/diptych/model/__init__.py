"""DeepSeek-V4.1 as pure functions of weights and activations."""
