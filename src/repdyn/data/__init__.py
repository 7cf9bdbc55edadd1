"""Text to train and to measure on: where it comes from, what it is, and how it becomes batches.

text, enwik8      sources, each named by its checksum
clean             a Wikipedia dump to prose
source            one of them by a word or a path
vocabulary        distinct bytes and characters of a text
byte_tokenizer    the default vocabulary
tokens, windows   a text as token ids, token ids as batches
datamodule        all of it as a LightningDataModule
lda               documents that a topic model writes, each word with its topic
topic_datamodule  these as a LightningDataModule
"""
