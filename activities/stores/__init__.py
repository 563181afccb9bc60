"""Where large payloads are kept."""
