"""What train.py trains on, as LightningDataModules, and its command line.

tokens            the byte vocabulary; a text as token ids
windows           token ids as batches, with a place that checkpoints store
datamodule        a text as a LightningDataModule
topic_datamodule  documents written by a topic model, each word with its topic, as a
                  LightningDataModule
train             the command line: a tracker attached, and a fresh folder for every run
"""
