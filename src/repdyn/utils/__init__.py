"""Utilities that know nothing of models or metrics: files, redaction, YAML, distributed ranks, timeouts."""
