"""The probe: the fixed tokens on which every checkpoint is measured, and the sampling design.

probe            ``Probe``: token sequences with a seeded plan of the vectors to measure, and its
                 file
design           ``Design``: windows, vectors per window, and whether neighbours in the same window
                 are excluded; views
windows          cut texts into windows of token ids
content          validation and batches of a probe's tokens
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
