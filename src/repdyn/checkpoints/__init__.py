"""Checkpoints that were published or saved: where they come from, what is wrong with them, and
their measurement.

A sweep runs through them in this order:

sweep             ``sweep``: from its options to its outcome; plans say what it would cost
options           what is asked for; completion adds what a live run or a default says
sources           the checkpoints that a source stands for: published (branches, tags, commits, or
                  the lists of suites), local (folders and files), or functions of the user's
revisions         the steps in names, and which of them are selected
targets           ``Target``, ``Selection``: a checkpoint, and those of a run
histories, audit  the files of published checkpoints, and what is wrong with them
probes            the probe of a run's checkpoints, with their tokenizer
tasks             a checkpoint with its probe, and what the store has of it
measuring         fetch, load, measure and store, one checkpoint after another; ray_engine several
downloads         the files of the checkpoints that come next, within a disk budget
hub               the Hugging Face Hub, through its own client
weight_files      which files of a checkpoint are its weights
weights           models from these files; weight_names judges names, other_weights stale copies
errors            of one checkpoint, and those that end a sweep
"""
