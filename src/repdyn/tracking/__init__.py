"""Tracking a training, whoever runs it: measured, stored, logged and shown, and nothing of it stops
the training.
"""
