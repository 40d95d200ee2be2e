"""`diptych chat`: a conversation in the terminal, over HTTP, with any gateway."""
