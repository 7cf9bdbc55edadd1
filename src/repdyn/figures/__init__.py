"""Figures: stored measurements drawn with matplotlib."""
