"""Texts by name or path, identified by their checksum.

corpus       ``Corpus``: read a file, packed or not
enwik8       download and verify enwik8
clean        reduce a Wikipedia dump to prose
source       ``load_corpus``: a text by a word or a path
vocabulary   count the distinct bytes and characters of a text
"""
