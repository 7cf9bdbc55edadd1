"""Training data as LightningDataModules.

tokens            the byte vocabulary; a text as token ids
windows           token ids as batches, with a place that checkpoints store
datamodule        a text as a LightningDataModule
topic_datamodule  documents written by a topic model, each word with its topic, as a LightningDataModule
"""
