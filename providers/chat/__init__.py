"""The Chat Completions format, which most servers and gateways speak."""
