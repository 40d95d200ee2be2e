"""Diptych: online serving for DeepSeek-V4.1-Flash."""

__version__ = "0.1.0"
