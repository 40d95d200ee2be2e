"""Who may ask, how much, and what became of it: keys, limits, usage, audit."""
