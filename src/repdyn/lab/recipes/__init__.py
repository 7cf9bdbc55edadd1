"""Recipes: published measurements described in YAML, with what counts as reproduced; see
docs/reproduce.md.
"""
