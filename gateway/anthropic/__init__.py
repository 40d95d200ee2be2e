"""Anthropic's Messages, said in chat requests: blocks in, blocks out."""
