"""Between messages and token ids: template, tokenizer, detokenizer, parser."""
