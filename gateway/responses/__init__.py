"""OpenAI's Responses without storage, said in chat requests: items in, items out."""
