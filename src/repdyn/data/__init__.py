"""Training data as LightningDataModules.

byte_tokenizer    the default vocabulary
tokens, windows   a text as token ids, token ids as batches
resumable_loader  batches with a place that checkpoints store
datamodule        a text as a LightningDataModule
topic_datamodule  documents written by a topic model, each word with its topic, as a LightningDataModule
"""
