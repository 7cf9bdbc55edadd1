"""The token explorer: a page in which the tokens of a sentence are followed through one or several
checkpoints.
"""
