"""Each layer's states of any model: blocks found, run without a trace, their outputs kept where they are sampled."""
