"""The probe: the fixed tokens on which every checkpoint is measured, and the sampling design.

probe            ``Probe``: the ways to make one from tokens, texts, data sets or inputs
sampled_tokens   what it then is: token sequences with a seeded plan of the vectors to measure
building         what its constructors share: windows of rows, fields of windows
sampling         which tokens are in which batch
distinct         a sample in which no token, or no input, occurs twice
bounds           how much of a large text is read by default
file             its safetensors file, and the hash of its content
design           ``Design``: windows, vectors per window, and whether neighbours in the same window
                 are excluded; views
windows          cut texts into windows of token ids
content          validation and batches of a probe's tokens
datasets         texts, tokens or inputs of a data set's rows
corpus, clean    texts by name, and enwik8 without its markup
inputs           images, waveforms and pairs in place of tokens
word_classes     map tokens to words, and words to classes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repdyn.utils.extras import lazy_names

if TYPE_CHECKING:
    from repdyn.probe.content import ProbeBatch
    from repdyn.probe.design import Design
    from repdyn.probe.probe import Probe

__all__ = ["Design", "Probe", "ProbeBatch"]

# a probe needs torch, names of designs and classes of words do not
__getattr__ = lazy_names(
    __name__,
    {
        "Design": "repdyn.probe.design",
        "Probe": "repdyn.probe.probe",
        "ProbeBatch": "repdyn.probe.content",
    },
)
