"""Measurements, each with a command; figures are ratios or counts, never times in tests."""
