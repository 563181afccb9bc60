"""The native format of Gemini."""
