"""A model prepared for a measurement: its blocks, its device and how it is run, resolved once."""

from __future__ import annotations

import inspect
import operator
import re
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from repdyn.capture.blocks import (
    Block,
    Blocks,
    LayerPatterns,
    check_no_tensor_parallelism,
    class_name,
    find_blocks,
    find_network,
    hugging_face_model,
    is_a,
    list_candidates,
    silent_blocks,
    unwrapped,
)
from repdyn.capture.forward import (
    Forward,
    call_with_dict,
    call_with_ids,
    call_with_inputs,
    call_with_tokens,
    evaluating,
    inside_fsdp_root,
    parameters_of,
    restoring,
)
from repdyn.capture.hooks import KeepHooks, acting_hooks, changing_hooks, doubtful_hooks
from repdyn.capture.shadow import ShadowError, own_names
from repdyn.capture.streams import SUM, Streams, chain_of, refusal_of_chain, refusal_of_several
from repdyn.capture.token_states import (
    EmbeddingSearch,
    InputStates,
    Slot,
    TokenStates,
    are_same_states,
    by_slot,
    watched,
)
from repdyn.capture.write_guard import WriteGuard
from repdyn.probe import Probe, ProbeBatch
from repdyn.probe.inputs import first_input, moved
from repdyn.utils.caller_state import plain_state

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SHORT = 63
"""Tokens of the sequence on which a model shows how it is run; odd, and one that needs a certain
length gets all.
"""
_VALUES = {
    "attention_mask": "batch.attention_mask",
    "mask": "batch.attention_mask",
    "labels": "batch.input_ids",
    "targets": "batch.input_ids",
}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")

Way: TypeAlias = Literal["shadow", "restored"]


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedModel:
    """A model and everything that is needed to run it on a probe; made by :func:`prepare`."""

    module: nn.Module
    """The model without the wrappers of ``torch.compile``, DistributedDataParallel, DataParallel
    and FSDP.
    """
    root_module: nn.Module
    """The module that the model is a part of where that is sharded as a whole, or the model itself.
    """
    blocks: Blocks
    """The modules whose outputs are layers, stack after stack."""
    blocks_named: bool
    """Whether the caller named the blocks; found ones must pass states from one to the next."""
    device: torch.device
    forward: Forward | None
    whole: PreTrainedModel | None
    """The Hugging Face model that it is, or wraps as the only one."""
    body: nn.Module
    """What is called: the model without the head of a Hugging Face model, whose logits are not
    needed, where it can.
    """
    needs_logits: bool
    """Whether a call without the logits could leave out a block."""
    pads_right: bool
    """Whether that pads sequences on the right: Longformer and similar ones do, to whole windows,
    blocks or chunks.
    """
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    """By name, what stands in for the model's own parameters."""
    unfound: str = ""
    """Why no blocks were found."""
    keep_hooks: KeepHooks = ()
    """The user's own hooks that act without a trial."""

    # What a first pass shows, see :meth:`on`
    way: Way = "shadow"
    """Whether a shadow runs in the model's place, or the model itself, which is then restored."""
    call: Callable[..., Any] = call_with_tokens
    """How the model is called where ``forward`` is None; :func:`call_with_inputs` on a probe of
    inputs.
    """
    positions_first: bool = False
    """Whether its states of inputs have the positions in the first dimension, and the inputs in the
    second.
    """
    reports_states: bool = False
    """Whether the layers are the hidden states that a Hugging Face model reports, rather than
    outputs of blocks.
    """
    slots: Mapping[str | None, tuple[Slot, Slot]] = field(default_factory=dict)
    """By stack, which part of what its blocks take and which of what they return the states are,
    where it is known.
    """
    sums: Mapping[str | None, tuple[Slot, Slot]] = field(default_factory=dict)
    """By stack, the two parts of what its blocks return whose sum the states are: an output, and
    the residual that the next block adds it to.
    """
    any_length: bool = False
    """Whether it runs on windows that are cut anywhere."""
    acting: Collection[int] | None = None
    """The numbers of its hooks that act; None before the first pass."""
    structure: Sequence[tuple] = ()
    """The modules, classes and hooks that all this was found for; see :meth:`fits`."""
    causal: Mapping[str | None, bool | None] = field(default_factory=dict)
    """For each stack, whether no position sees a later one; filled in by whoever has tried it, and
    padding too.
    """

    @property
    def stacks(self) -> list[str | None]:
        """The names of the stacks, (None,) in a model that has one."""
        return list(dict.fromkeys(block.stack for block in self.blocks))

    @property
    def is_causal(self) -> bool | None:
        """Tell whether no position sees a later one; None where that is unknown, or the stacks
        differ.
        """
        found = set(self.causal.values())
        return found.pop() if len(found) == 1 else None

    @cached_property
    def description(self) -> dict[str, Any]:
        """Return what :class:`repdyn.store.schema.Checkpoint` records of the model."""
        device = self.device
        # FSDP1 keeps parameters in flat pieces
        is_known = not any(
            is_a(module, "torch.FullyShardedDataParallel") for module in self.root_module.modules()
        )
        n_parameters = sum(
            parameter.numel() for parameter in self.module.parameters() if not is_lazy(parameter)
        )
        return {
            "causal": self.is_causal,
            "parameters": n_parameters if is_known else None,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "way": self.way,
        }

    def token_states(self) -> TokenStates:
        """Return a search for the states of a batch's tokens, or of what is sampled of a batch of
        inputs.
        """
        if self.call is call_with_inputs:
            return InputStates(positions_first=self.positions_first)
        return TokenStates(pads_right=self.pads_right)

    def fits(self, root_module: nn.Module) -> bool:
        """Return whether a model is still as it was when it was tried: of the same modules and
        hooks, on its device.

        Its weights may be others.
        """
        is_same = (
            root_module is self.root_module and device_of(self.module, root_module) == self.device
        )
        return is_same and self.structure == _structure_of(root_module)

    @contextmanager
    def evaluating(self) -> Iterator[Run]:
        """Yield what runs the model on batches, in evaluation mode and with FSDP's weights
        gathered.

        Raises:
            RuntimeError: the weights were overwritten by code invisible to PyTorch.
        """
        if self.way == "restored":
            with (
                restoring(self.module, self.device) as guard,
                inside_fsdp_root(self.root_module, self.body) as inside,
            ):
                yield Run(self, guard, inside)
            return
        with evaluating(
            self.module, self.device, parameters=self.parameters, acting=self.acting
        ) as (shadow, guard):
            of = shadow.of
            if self.reports_states:  # in the configuration, which is the shadow's own
                for module in shadow.module.modules():
                    if is_a(module, "transformers.PreTrainedModel"):
                        module.config.output_hidden_states = True
            model = replace(
                self,
                module=shadow.module,
                root_module=shadow.module,
                body=of(self.body),
                blocks=self.blocks
                if self.reports_states
                else [b._replace(module=of(b.module)) for b in self.blocks],
                whole=None if self.whole is None else cast("PreTrainedModel", of(self.whole)),
            )
            yield Run(model, guard)

    @plain_state()
    def on(self, probe: Probe | ProbeBatch) -> PreparedModel:
        """Return the model as it is run on a probe, which one pass over one of its sequences shows.

        It shows how the model is called where its signature leaves that open (with ``input_ids``
        and what else the forward names, with the ids alone, with one dictionary of both); whether
        the blocks pass states from one to the next; which of its hooks only look on. Where a
        Hugging Face model has no blocks that pass states on, its layers are the hidden states that
        it reports.

        Raises:
            ValueError: the forward pass fails, with the ``forward=`` to write; token ids that the
                model does not know; or no blocks were found.
            RuntimeError: the blocks that were found do not pass states from one to the next.
            OSError, MemoryError, torch.OutOfMemoryError: what the machine lacks.
        """
        if self.acting is not None:
            return self
        try:
            tried = self._with_hooks(probe)
        except ShadowError as reason:
            self._check_no_parameters(reason)
            tried = replace(self, way="restored", acting=())._tried(probe)
        except ForwardError as failure:
            # A copy may fail where the model does not: modules that are looked up by identity, as
            # in a table of the user's Python module, are not found by their copies.
            try:
                tried = replace(self, way="restored", parameters={}, acting=())._tried(probe)
            except (ValueError, RuntimeError):
                raise failure from failure.__cause__
            self._check_no_parameters(failure)
        return replace(tried, structure=_structure_of(self.root_module))

    def _check_no_parameters(self, reason: Exception) -> None:
        """Raise ValueError where others are to stand in for the model's own parameters, which only
        a shadow can have."""
        if self.parameters:
            raise ValueError(
                "expected a model that parameters= can stand in for, got a "
                f"{class_name(self.module)} whose copy fails: {reason}; measure a copy of the "
                "model that has them"
            ) from reason

    def _with_hooks(self, probe: Probe | ProbeBatch) -> PreparedModel:
        """Return the model as a first pass shows it, with the hooks that make a difference."""
        settled = acting_hooks(self.module, self.keep_hooks)
        doubtful = doubtful_hooks(self.module, settled)
        try:
            tried = replace(self, acting=settled)._tried(probe)
        except ForwardError:
            if not doubtful:
                raise
            # it may run with its hooks alone
            return replace(self, acting=settled | {hook.number for hook in doubtful})._tried(probe)
        if not doubtful:
            return tried
        batch = _one_sequence(probe)
        changing = changing_hooks(
            doubtful, lambda numbers: replace(tried, acting={*settled, *numbers})._outputs(batch)
        )
        return replace(self, acting=settled | changing)._tried(probe) if changing else tried

    def _outputs(self, batch: ProbeBatch) -> list[Tensor]:
        """Return what the blocks and the model put out for a batch."""
        tensors: list[Tensor] = []

        def keep(_block: Block | None, returned: Mapping[Slot, Any]) -> None:
            tensors.extend(part.clone() for part in returned.values() if isinstance(part, Tensor))

        with self.evaluating() as run, watched(run.model.blocks, leave=keep):
            keep(None, by_slot(run(batch)))
        return tensors

    def _tried(self, probe: Probe | ProbeBatch) -> PreparedModel:
        if isinstance(probe, Probe) and probe.inputs is not None:
            return self._on_inputs(_one_sequence(probe))
        tokens = _one_sequence(probe).input_ids[0]
        every = probe.tokens if isinstance(probe, Probe) else probe.input_ids
        largest = int(every.max())
        calls = (
            (call_with_tokens, call_with_ids, call_with_dict)
            if self._leaves_open()
            else (call_with_tokens,)
        )
        failures: list[Exception] = []
        for length in sorted({max(2, min(_SHORT, len(tokens) - 1)), len(tokens)}):
            failures = []
            batch = _as_batch(tokens[None, :length])
            for call in calls:
                try:
                    model = replace(self, call=call)._linked(batch, largest)
                    return replace(model, any_length=length < len(tokens))
                except ShadowError:
                    raise
                except ForwardError as error:
                    failures.append(error)
                except (
                    ValueError,
                    RuntimeError,
                ) as error:  # it runs in this way, but not from block to block
                    failures = [error]
                    break
        raise failures[0]

    def _on_inputs(self, batch: ProbeBatch) -> PreparedModel:
        if self.unfound:
            raise ValueError(self.unfound)
        model = replace(self, call=call_with_inputs)
        shapes: list[torch.Size] = []

        def keep_shapes(_block: Block, returned: Mapping[Slot, Any]) -> None:
            shapes.extend(
                part.shape
                for part in returned.values()
                if isinstance(part, Tensor) and part.ndim == 3
            )

        with model.evaluating() as run, watched(run.model.blocks, leave=keep_shapes):
            streams = run.model._streams()
            with streams.watching() if streams else nullcontext():
                run(batch)
        model = model._of_streams(streams)
        first = any(s[1] == 1 < s[0] for s in shapes) and not any(s[0] == 1 < s[1] for s in shapes)
        return replace(model, positions_first=first)

    def _linked(self, batch: ProbeBatch, largest: int) -> PreparedModel:
        """Return the model as a pass over one sequence shows it; ``largest`` is the largest id of
        the probe.
        """
        with self.evaluating() as run:
            streams = run.model._streams()
            with streams.watching() if streams else nullcontext():
                slots, failure = _links(run, batch, largest)
        tried = replace(self, slots=slots)
        if self.blocks_named or not failure:
            tried = tried._of_streams(streams)
        reason = self.unfound or ("" if self.blocks_named else failure)
        if not reason:
            return tried
        if self.forward is None and self.way == "shadow" and self.whole is not None:
            body, needs_logits = _body(self.module, self.whole, [])
            model = replace(
                tried, reports_states=True, blocks=[], body=body, needs_logits=needs_logits
            )
            with model.evaluating() as run:
                names = list(run.reported_states(run(batch), batch))[1:]
            if names:
                return replace(
                    model, blocks=[Block(name, _ReportedState()) for name in names], slots={}
                )
        raise ValueError(reason) if self.unfound else RuntimeError(reason)

    def _streams(self) -> Streams | None:
        """Return what watches the blocks of one stack in a pass; None for models of a library,
        whose layers are what their configuration counts, and for several stacks."""
        is_chosen = any(block.slot is not None for block in self.blocks)
        if len(self.stacks) > 1 or not (self.blocks and (self.whole is None or is_chosen)):
            return None
        named_apart = self.blocks if is_chosen else None
        chain = chain_of(self.module, self.blocks) if self.blocks_named else self.blocks
        blocks = chain or named_apart
        return None if blocks is None else Streams(blocks, self.module)

    def _of_streams(self, streams: Streams | None) -> PreparedModel:
        """Return the model with the stream that a pass has shown; ValueError where that is not one,
        and none was chosen."""
        if streams is None:
            if any(block.slot is not None for block in self.blocks):
                raise ValueError(
                    'expected a part of what blocks return, such as "blocks.*:1", in layers= of '
                    f"one stack, got {len(self.stacks)} stacks; measure them one by one"
                )
            return self
        stack = self.stacks[0]
        chosen = self.blocks[0].slot
        if chosen is not None:
            if chosen not in streams.links:
                raise ValueError(
                    f"expected part {chosen} of what {self.blocks[0].name!r} returns to be states "
                    f"that the next block takes, got {', '.join(map(str, streams.links)) or 'none'}"
                )
            return replace(self, slots={stack: (streams.links[chosen], chosen)})
        # a stack that has a name was told apart on purpose
        if stack is None and streams.broken is not None:
            raise RuntimeError(refusal_of_chain(streams.broken, self.blocks))
        if streams.summed is not None:
            return replace(self, sums={stack: streams.summed})
        if stack is None and len(streams.moving) > 1:
            raise RuntimeError(refusal_of_several(streams.moving, self.blocks))
        return self

    def with_sum(self, block: Block, returned: Mapping[Slot, Any]) -> Mapping[Slot, Any]:
        """Return what a block returned, with the sum that the states are, if they are one."""
        if block.stack not in self.sums:
            return returned
        one, other = self.sums[block.stack]
        return {SUM: returned[one] + returned[other], **returned}

    def _leaves_open(self) -> bool:
        """Return whether a forward could take the tokens in several ways: any keywords, or one of
        no known type.
        """
        if self.forward is not None or is_a(self.module, "transformers.PreTrainedModel"):
            return False
        parameters = list(parameters_of(self.module).values())
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
            return True
        required = [
            p for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL
        ]
        return (
            len(required) == 1
            and "Tensor" not in str(required[0].annotation)
            and required[0].name != "input_ids"
        )


def _one_sequence(probe: Probe | ProbeBatch) -> ProbeBatch:
    """Return the longest sequence of a probe, or the first of a batch or of a probe of inputs."""
    if isinstance(probe, ProbeBatch):
        return _as_batch(probe.input_ids[:1].cpu())
    if probe.inputs is not None:
        return first_input(next(probe.batches(1)))
    return _as_batch(probe.tokens.split(probe.lengths.tolist())[int(probe.lengths.argmax())][None])


def _as_batch(ids: Tensor) -> ProbeBatch:
    numbers = np.arange(ids.shape[1])
    return ProbeBatch(ids, torch.ones_like(ids), numbers, numbers)


def _structure_of(model: nn.Module) -> list[tuple]:
    """Return the modules of a model by name, with the class, the hooks and any forward of its own
    of each.
    """
    own = [(name, module, vars(module)) for name, module in model.named_modules()]
    return [
        (
            name,
            id(module),
            type(module),
            *(tuple(state.get(kind, ())) for kind in _HOOKS),
            id(state.get("forward")),
        )
        for name, module, state in own
    ]


def _links(
    run: Run, batch: ProbeBatch, largest: int
) -> tuple[dict[str | None, tuple[Slot, Slot]], str]:
    """Run one batch, and find whether each block takes what the one before returned.

    Returns:
        By stack, which part of what blocks take and which of what they return the states are; and
        what is wrong with the blocks, or "".
    """
    model, states = run.model, run.model.token_states()
    states.batch = batch
    entered: dict[str | None, dict[Slot, Tensor]] = {}
    left: dict[str | None, tuple[str, dict[Slot, Tensor]]] = {}
    slots: dict[str | None, tuple[Slot, Slot]] = {}
    called: set[str] = set()
    failures: list[str] = []

    def rows(block: Block, parts: Mapping[Slot, Any]) -> dict[Slot, Tensor]:
        states.stack = block.stack
        found = states.rows_by_slot(parts)
        if not found:
            failures.append(states.explain_mismatch(block.name, parts))
        return found

    def enter(block: Block, taken: Mapping[Slot, Any]) -> None:
        before, entered[block.stack] = entered.get(block.stack, {}).values(), rows(block, taken)
        name, returned = left.get(block.stack, ("", {}))
        if not returned or failures:
            return
        into = entered[block.stack]
        pairs = [
            (take, give)
            for give in returned
            for take in into
            if are_same_states(returned[give], into[take])
        ]
        # what a block only passes on, such as positions, is not its states
        pairs.sort(key=lambda pair: any(are_same_states(one, returned[pair[1]]) for one in before))
        if pairs:
            slots.setdefault(block.stack, pairs[0])
            return
        failures.append(
            f"expected blocks that each take the output of the one before, but {block.name!r} does "
            f"not take the output of {name!r}, so that these are not the layers of one stream; "
            "name the blocks that are with layers=, or run the model once with forward=; the model "
            f"has {list_candidates(model.module)}"
        )

    def leave(block: Block, returned: Mapping[Slot, Any]) -> None:
        called.add(block.name)
        left[block.stack] = block.name, rows(block, returned)

    search = EmbeddingSearch(model.module, largest=largest)
    with search.during(batch), watched(model.blocks, enter, leave):
        try:
            run(batch)
        except ForwardError:
            if failures and not model.blocks_named:
                raise RuntimeError(failures[0]) from None
            raise
    return slots, failures[0] if failures else silent_blocks(model.module, model.blocks, called)


class ForwardError(ValueError):
    """A forward pass that failed in code of the model, with what to do."""


@dataclass(frozen=True, eq=False)
class Run:
    """A function that runs a model on batches, made by :meth:`PreparedModel.evaluating`."""

    model: PreparedModel
    """The model that runs, the shadow if there is one; hooks belong on its blocks."""
    guard: WriteGuard
    inside: Callable[[Callable[[], Any]], Any] = operator.call
    """Calls a function where the weights are gathered."""

    def __call__(
        self, batch: ProbeBatch, module: nn.Module | None = None, *, logits: bool = False
    ) -> Any:
        """Return what the model returns for a batch, or ``module``, a part of it that is called in
        its place.
        """
        model = self.model
        # copies, since a forward pass may write into its inputs, which are the probe's own tensors
        ids = batch.input_ids.to(model.device, copy=True)
        mask = batch.attention_mask.to(model.device, copy=True)
        inputs = batch.inputs
        if inputs is not None:  # in the precision of the first weights of floating type
            dtypes = (parameter.dtype for parameter in model.module.parameters())
            dtype = next(
                (d for d in dtypes if d in {torch.float32, torch.float16, torch.bfloat16}), None
            )
            inputs = moved(inputs, model.device, dtype)
        there = replace(batch, input_ids=ids, attention_mask=mask, inputs=inputs)
        if model.forward is not None and module is None:
            call = model.forward
        else:
            call = partial(model.call, logits=logits or model.needs_logits)
        if module is None:
            module = model.module if logits else model.body
        try:
            output = self.inside(partial(call, module, there))
        except (OSError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if _is_own(error):
                raise
            raise ForwardError(_explain(model, batch, error)) from error
        if model.reports_states and model.blocks:
            states = list(self.reported_states(output, batch).values())
            for block, entered, left in zip(model.blocks, states[:-1], states[1:], strict=True):
                block.module(entered, left)
        return output

    def reported_states(self, output: Any, batch: ProbeBatch) -> dict[str, Tensor]:
        """Return the hidden states in a model's output that have one vector for each token, by
        name.
        """
        reported = getattr(output, "hidden_states", None) or ()
        search = self.model.token_states()
        search.batch = batch
        return {
            f"hidden_states.{index}": states
            for index, states in enumerate(reported)
            if isinstance(states, Tensor) and search.rows_of(states) is not None
        }


class _ReportedState(nn.Module):
    """A block that a hidden state which a model reports passes through."""

    def forward(self, entered: Tensor, left: Tensor) -> Tensor:
        return left


def prepare(
    model: nn.Module,
    layers: LayerPatterns = None,
    *,
    forward: Forward | None = None,
    root_module: nn.Module | None = None,
    parameters: Mapping[str, Tensor] | None = None,
    keep_hooks: KeepHooks = (),
) -> PreparedModel:
    """Resolve once what every pass over a probe needs to know of a model.

    Args:
        model: a Hugging Face model or any module built of a list of blocks, wrapped or not; a
            module whose class has no ``forward`` stands for the one network in it.
        layers: names of the blocks, see :func:`repdyn.capture.blocks.find_blocks`.
        forward: ``forward(model, batch)`` runs the model on a :class:`repdyn.probe.ProbeBatch`;
            None calls it as :func:`repdyn.capture.forward.call_with_tokens` does.
        root_module: the module that the model is a part of, where that is sharded as a whole; None
            for the model itself.
        parameters: by their names in the model, what to take in place of its own parameters and
            buffers, such as averages of them.
        keep_hooks: forward hooks of the user's own that act, see :mod:`repdyn.capture.hooks`.

    Raises:
        ValueError: the blocks cannot be identified (the message lists the candidates),
            ``parameters`` have other shapes, or ranks hold parts of one layer.
    """
    root_module, model = model if root_module is None else root_module, unwrapped(model)
    check_no_tensor_parallelism(root_module)
    if forward is None:
        model = find_network(model)
    whole, unfound, blocks = hugging_face_model(model), "", []
    try:
        blocks = find_blocks(model, layers)
    except ValueError as error:
        if layers is not None or whole is None:
            raise
        unfound = str(error)
    body, needs_logits = (model, True) if forward is not None else _body(model, whole, blocks)
    return PreparedModel(
        module=model,
        root_module=root_module,
        blocks=blocks,
        blocks_named=layers is not None,
        device=device_of(model, root_module),
        forward=forward,
        whole=whole,
        body=body,
        needs_logits=needs_logits,
        pads_right=any(map(_pads_right, model.modules())),
        parameters=own_names(model, parameters or {}),
        unfound=unfound,
        keep_hooks=keep_hooks,
    )


def _pads_right(module: nn.Module) -> bool:
    """Return whether a Hugging Face model pads sequences on the right; ProphetNet adds predicting
    streams there.
    """
    if not is_a(module, "transformers.PreTrainedModel"):
        return False
    kind = type(module)
    return kind.__name__.startswith(("PegasusX", "ProphetNet")) or any(
        n.startswith("_pad_to_") for n in dir(kind)
    )


def device_of(model: nn.Module, root_module: nn.Module | None = None) -> torch.device:
    """Return the device on which a model takes its input: that of its first parameter that
    has one.
    """
    for module in (model, root_module):  # FSDP may have taken over all parameters of the model
        for parameter in module.parameters() if module is not None else ():
            if parameter.device.type != "meta":  # accelerate loads such ones as they are needed
                return parameter.device
    return torch.device("cpu")


def _body(
    model: nn.Module, whole: PreTrainedModel | None, blocks: Blocks
) -> tuple[nn.Module, bool]:
    """Return the module that is called, and whether all of its logits are needed for a measured
    block.

    The model itself is called where a measured block is in the head, and where its forward pass is
    not the library's own: in a class of the user's, or in a function or hooks attached to it.
    """
    inside = set() if whole is None else set(whole.base_model.modules())
    if whole is None or not all(block.module in inside for block in blocks):
        return model, True
    hooks = (*model._forward_pre_hooks.values(), *model._forward_hooks.values())
    # fully_shard replaces the class with one of its own
    homes = (kind.__module__ for kind in type(model).__mro__)
    has_library_forward = (
        next(home for home in homes if not home.startswith("torch.distributed.")).startswith(
            "transformers."
        )
        # accelerate attaches its autocast and its loading of weights to an instance, which makes no
        # difference here
        and (
            "forward" not in vars(model)
            or bool({"_original_forward", "_old_forward"} & set(vars(model)))
        )
        and all(getattr(hook, "__module__", "").startswith("torch.distributed.") for hook in hooks)
    )
    return whole.base_model if whole is model and has_library_forward else model, False


def _is_own(error: Exception) -> bool:
    """Return whether an error was raised by this package, whose messages say what to do, rather
    than by the model.
    """
    # operations of the model pass through a mode of this package
    frames = [
        each
        for each in traceback.extract_tb(error.__traceback__)
        if each.name != "__torch_function__"
    ]
    return Path(__file__).parent in Path(frames[-1].filename).resolve().parents if frames else False


def _explain(model: PreparedModel, batch: ProbeBatch, error: Exception) -> str:
    """Return what to do about an error of a model's forward pass."""
    name, shape = class_name(model.module), tuple(batch.input_ids.shape)
    failure = f"{type(error).__name__}: {error}"
    if {weight.device.type for weight in model.module.parameters()} == {"meta"}:
        return (
            f"expected weights that have values, got a {name} on the meta device: {failure}; load "
            "them first"
        )
    signature = f"({', '.join(parameters_of(model.module))})"
    if batch.inputs is not None:
        how = "forward= to run" if model.forward is not None else "the inputs to run"
        return (
            f"expected {how} {name}.forward{signature}, got {failure}; name the inputs as the "
            "forward does, give them as a tuple in its order, or run the model with forward=lambda "
            "model, batch: model(batch.inputs)"
        )
    if model.forward is not None:
        return f"expected forward= to run {name} on a ProbeBatch of shape {shape}, got {failure}"
    longest = (
        None
        if model.whole is None
        else getattr(model.whole.config.get_text_config(), "max_position_embeddings", None)
    )
    if longest is None and isinstance(error, IndexError):  # positions that the model has learned
        sizes = [
            each.num_embeddings for each in model.module.modules() if isinstance(each, nn.Embedding)
        ]
        longest = max((size for size in sizes if size < shape[1]), default=None)
    if isinstance(longest, int) and 0 < longest < shape[1]:
        return (
            f"expected windows of at most {longest} tokens, which {name} can read, got {shape[1]} "
            f"({failure}); make the probe with sequence_length={longest}"
        )
    return (
        f"expected {name}.forward{signature} to run on token ids up to "
        f"{int(batch.input_ids.max())} of shape {shape}, got {failure}; where it takes something "
        f"else, say how to run it: forward={_example(model, error)}"
    )


def _example(model: PreparedModel, error: Exception) -> str:
    """Return a function for ``forward=`` as source, with a value for each argument that the forward
    requires, by its signature or by the line that failed."""
    parameters = parameters_of(model.module)
    required = [
        p.name for p in parameters.values() if p.default is p.empty and p.kind < p.VAR_KEYWORD
    ]
    first, *others = required or ["input_ids"]
    failed = re.findall(r"\w+", traceback.extract_tb(error.__traceback__)[-1].line or "")
    others += [
        name for name in parameters if name in _VALUES and name in failed and name not in required
    ]
    if not others and first in {"batch", "inputs", "features", "sample"}:
        return (
            'lambda model, batch: model({"input_ids": batch.input_ids, "attention_mask": '
            "batch.attention_mask})"
        )
    is_named = first in parameters and parameters[first].kind is inspect.Parameter.KEYWORD_ONLY
    values = [
        f"{first}=batch.input_ids" if is_named else "batch.input_ids",
        *(f"{name}={_VALUES.get(name, '...')}" for name in others),
    ]
    return f"lambda model, batch: model({', '.join(values)})"
