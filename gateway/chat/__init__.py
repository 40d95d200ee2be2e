"""Chat completions: messages in, one answer for each choice out."""
