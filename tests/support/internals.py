"""What tests take from torch's modules of private names, in one place."""

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

__all__ = ["TorchDispatchMode", "checkpoint_wrapper", "tree_iter"]
