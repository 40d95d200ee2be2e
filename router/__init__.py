"""Who serves a request: decisions, queue and ledger. Never carries tokens."""
