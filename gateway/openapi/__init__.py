"""The public API described as OpenAPI 3.1, from the models that read its bodies."""
