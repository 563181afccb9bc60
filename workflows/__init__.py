"""Orchestration: deterministic workflow code."""
