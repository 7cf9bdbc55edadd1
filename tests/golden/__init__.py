"""Reference values that no change may alter unsaid: ``make`` writes them, ``tests/test_golden.py``
compares them.
"""
