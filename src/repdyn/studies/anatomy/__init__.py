"""The embedding tables of a model, and the paths of tokens through its layers; see docs/anatomy.md."""
