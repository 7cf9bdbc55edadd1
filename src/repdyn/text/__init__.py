"""Texts, loaded by name or path and identified by their checksum.

corpus  ``load_corpus``: load a text by name or path, compressed or not; enwik8 downloaded and
        verified
clean   reduce a Wikipedia dump to prose
"""
