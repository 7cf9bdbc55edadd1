"""Utilities that know nothing of models or metrics: files, names, redaction, YAML, distributed
ranks, timeouts.
"""
