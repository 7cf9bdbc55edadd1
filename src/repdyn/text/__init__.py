"""Texts, loaded by name or path and identified by their checksum.

corpus       ``Corpus``: read a file, compressed or not
enwik8       download and verify enwik8
clean        reduce a Wikipedia dump to prose
source       ``load_corpus``: load a text by name or path
vocabulary   count the distinct bytes and characters of a text
"""
