"""Publishing: rows, figures and reports sent to Lightning loggers, live or exported from a
store.
"""
