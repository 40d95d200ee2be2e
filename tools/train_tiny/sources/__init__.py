"""Where dialogues come from: each file one kind, drawn from a seeded random generator."""
