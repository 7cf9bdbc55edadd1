"""Measuring runs a shadow of a model: nothing that a forward pass writes is found in the model
afterwards.
"""

from __future__ import annotations

import copy
import functools
import gc
import random
import threading
import types
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from counting import Counting
from small import HandWritten, random_tokens
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.utils.flop_counter import FlopCounterMode

from repdyn import Probe, measure
from repdyn.capture.shadow import Shadow, ShadowError
from repdyn.capture.trial import prepare
from repdyn.measurement.measure import measure_with, prepare_for
from repdyn.measurement.options import Measurement, MeasurementOptions

SEEN: list[int] = []
SHIFTS: list[bool] = []


@dataclass
class Cache:
    """A plain object, as caches are."""

    tensors: list = field(default_factory=list)
    length: int = 0


class Held:
    """Something that is open until it goes (tqdm/tqdm, tqdm/std.py)."""

    n_open = 0

    def __init__(self):
        Held.n_open += 1

    def __del__(self):
        Held.n_open -= 1


class Slotted:
    __slots__ = ("seen",)

    def __init__(self):
        self.seen = []


WRITES = (
    "list",
    "dict of lists",
    "deque",
    "counter",
    "private number",
    "new attribute",
    "tensor attribute",
    "tensor replaced",
    "buffer",
    "big buffer",
    "weight",
    "weight in place",
    "data of a weight",
    "weight merged by eval",
    "data of a quantised weight",
    "attribute of a weight",
    "object",
    "slots",
    "submodule replaced",
    "flags",
    "torch generator",
    "numpy generator",
    "python generator",
    "bound method",
    "closure",
    "partial",
    "global random state",
)
"""What a forward pass writes to, in one of many ways."""


class Part(nn.Module):
    """Something between the embedding and the blocks whose forward writes in one of many ways.

    Among these: a buffer that counts (pytorch/torchtitan, torchtitan/models/moe/moe.py), a table
    that grows (Dao-AILab/flash-attention, flash_attn/layers/rotary.py), weights that are merged by
    ``eval()`` (microsoft/LoRA, loralib/layers.py), weights that are packed as they are first used
    (bitsandbytes-foundation/bitsandbytes, bitsandbytes/nn/modules.py).
    """

    def __init__(self, kind):
        super().__init__()
        assert kind in WRITES
        self.kind = kind
        self.items = []
        self.by_length = defaultdict(list)
        self.recent = deque(maxlen=3)
        self.counter = Counter()
        self._n = 0
        self.plain = torch.zeros(16)
        self.cache = Cache()
        self.slotted = Slotted()
        self.scale = nn.Parameter(torch.ones(16))
        self.inner = nn.Linear(2, 2)
        self.quantised = type("Quantised", (nn.Parameter,), {})(torch.ones(2))
        self.register_buffer("load", torch.zeros(2))
        self.register_buffer("big", torch.ones(600_000))
        self.of_torch = torch.Generator().manual_seed(1)
        self.of_numpy = np.random.default_rng(1)
        self.of_python = random.Random(1)
        self.bound = self.note
        self.partial = functools.partial(Part.note, self)
        here = self
        self.closed = lambda: here.note()

    def note(self):
        self.items.append(1)

    def train(self, mode=True):
        if self.kind == "weight merged by eval" and not mode:
            self.scale.data += 1
        return super().train(mode)

    def forward(self, x):
        self.write(x)
        return x * self.scale

    # a case for each thing that a forward pass may write to
    def write(self, x):
        match self.kind:
            case "list":
                self.items.append(x.sum().item())
            case "dict of lists":
                self.by_length[x.shape[1]].append(1)
            case "deque":
                self.recent.append(x.detach())
            case "counter":
                self.counter.update(["calls"])
            case "private number":
                self._n += 1
            case "new attribute":
                self.latest = x.detach()
            case "tensor attribute":
                self.plain.add_(1)
            case "tensor replaced":
                self.plain = x.detach().mean((0, 1))
            case "buffer":
                self.load.add_(1)
            case "big buffer":
                self.big.mul_(2)
            case "weight":
                self.scale.data.mul_(2)
            case "weight in place":
                self.scale.mul_(2)
            case "data of a weight":
                self.scale.data = self.scale.data * 2
            case "weight merged by eval":
                pass  # train() writes
            case "data of a quantised weight":
                self.quantised.data = self.quantised.data * 2
            case "attribute of a weight":
                self.quantised.n_passes = 1
            case "object":
                self.cache.tensors.append(x)
                self.cache.length = x.shape[1]
            case "slots":
                self.slotted.seen.append(1)
            case "submodule replaced":
                self.inner = nn.Identity()
            case "flags":
                self.train()
            case "torch generator":
                torch.rand(1, generator=self.of_torch)
            case "numpy generator":
                self.of_numpy.random()
            case "python generator":
                self.of_python.random()
            case "bound method":
                self.bound()
            case "closure":
                self.closed()
            case "partial":
                self.partial()
            case "global random state":
                torch.rand(1)
                random.random()
                np.random.rand()


def state_of(model):
    generators = torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()
    flags = [module.training for module in model.modules()]
    return plain(model.position[1]), plain(generators), flags


# a case for each kind of value
def plain(value, seen=()):
    """Values that can be compared, of whatever is in an object."""
    if id(value) in seen or (callable(value) and not isinstance(value, nn.Module)):
        return "a function or a cycle"
    inner = (*seen, id(value))
    if isinstance(value, torch.Tensor):
        return value.shape, value.double().sum().item(), id(value), plain(vars(value), inner)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, dict):
        return {key: plain(item, inner) for key, item in value.items()}
    if isinstance(value, list | tuple | deque):
        return [plain(item, inner) for item in value]
    if isinstance(value, Slotted):
        return plain(value.seen)
    return plain(vars(value), inner) if hasattr(value, "__dict__") else repr(value)


def writing(kind):
    torch.manual_seed(0)
    model = HandWritten()
    model.position = nn.Sequential(model.position, Part(kind))
    return model


def values(model, probe, **options):
    return [row.value for row in measure(model, probe, ["anisotropy"], **options).rows]


@pytest.fixture(scope="module")
def probe():
    return Probe.from_tokens(random_tokens(24, 12), max_vectors=96)


@pytest.mark.parametrize("kind", WRITES)
def test_what_a_forward_pass_writes_is_not_found_in_the_model(kind, probe):
    model = writing(kind)
    before = state_of(model)
    weights = [p.data_ptr() for p in model.parameters()]
    rows = measure(model, probe, ["anisotropy"]).rows
    assert {row.way for row in rows} == {"shadow"}
    assert state_of(model) == before
    assert [p.data_ptr() for p in model.parameters()] == weights
    assert all(p.requires_grad for p in model.parameters())


def test_a_shadow_gives_the_very_same_values_and_no_memory_of_weights():
    torch.manual_seed(0)
    model = HandWritten().eval()
    tokens = random_tokens(2, 12)
    other = Shadow(model).module
    with torch.no_grad():
        assert torch.equal(other(tokens), model(tokens))
    assert [p.data_ptr() for p in other.parameters()] == [p.data_ptr() for p in model.parameters()]
    assert not {id(module) for module in other.modules()} & {
        id(module) for module in model.modules()
    }


class Logger:
    """Like a logger of any package: it holds a file, a lock, a thread."""

    def __init__(self, file):
        self.file = file
        self.lock = threading.Lock()
        self.lines = []


class Trainer:
    """Like a trainer: it holds optimizers and data."""

    def __init__(self, model):
        self.state = {"optimizers": [torch.optim.Adam(model.parameters())]}
        self.data = torch.utils.data.DataLoader([1, 2])


def test_what_is_not_the_models_own_data_is_shared(tmp_path):
    """A copied optimizer would double its memory, and the end of a copy would close a file."""
    model = HandWritten()
    model.trainer = Trainer(model)
    model.held = [Held()]
    model.cache = Cache()
    with (tmp_path / "log").open("w") as file:
        model.logger = Logger(file)
        other = Shadow(model).module
        assert other.trainer is model.trainer
        assert other.logger is model.logger
        assert other.cache is not model.cache
    assert other.held is not model.held
    assert other.held[0] is model.held[0]
    del other
    gc.collect()
    assert Held.n_open == 1


def counted(seen):
    """A hook that looks on, as those that keep activations do (cordercorder/knn-models,
    knn_models/hook_utils.py).
    """

    def count(module, args, output):
        seen["calls"] += 1

    return count


def test_hooks_that_look_on_see_nothing(probe):
    """Nor do those on every module (pytorch/pytorch, torch/utils/module_tracker.py)."""
    torch.manual_seed(0)
    model = HandWritten()
    seen = Counter()

    class Statistics:
        mean = 0.0

        def __call__(self, module, args, output):
            self.mean = 0.9 * self.mean + output.mean().item()

    statistics = Statistics()
    before = values(model, probe)
    model.blocks[0].register_forward_hook(counted(seen))
    model.blocks[1].register_forward_hook(statistics)
    on_every_module = counted(seen)
    handle = nn.modules.module.register_module_forward_hook(on_every_module)
    try:
        assert values(model, probe) == before
        assert nn.modules.module._global_forward_hooks[handle.id] is on_every_module
    finally:
        handle.remove()
    assert not seen
    assert statistics.mean == 0
    model.blocks[0](torch.zeros(1, 2, 16))
    assert seen["calls"] == 1


@pytest.mark.parametrize("in_place", [False, True])
def test_a_hook_that_changes_an_output_acts_and_is_named(in_place, probe, caplog):
    """Left out, a hook that steers would make another number, silently (emiehling/AISteer360,
    docs/tutorials/add_method_by_category/add_new_state_control.md; in place in
    steering-vectors/steering-vectors, steering_vectors/steering_vector.py).
    """
    torch.manual_seed(0)
    model = HandWritten()
    seen = Counter()
    before = values(model, probe)
    shift = torch.linspace(-3, 3, 16)
    model.blocks[0].register_forward_hook(counted(seen))

    def write(module, args, output):
        seen["calls"] += 1
        output.add_(shift)

    def add(module, args, output):
        seen["calls"] += 1
        return output + shift

    hook = write if in_place else add
    model.blocks[1].register_forward_hook(hook)
    acting = prepare(model, probe).acting
    (line,) = caplog.messages
    assert hook.__qualname__ in line
    assert "'blocks.1'" in line
    assert acting == {*model.blocks[1]._forward_hooks}
    tried = values(model, probe)
    assert tried != before
    caplog.clear()
    assert values(model, probe, keep_hooks=[hook]) == tried
    assert not caplog.messages
    assert not seen
    for block in model.blocks:
        block._forward_hooks.clear()
    forward = model.blocks[1].forward
    model.blocks[1].forward = lambda x: forward(x) + shift
    assert values(model, probe) == tried


def test_a_hook_that_acts_later_must_be_named(probe):
    """The trial is one pass at the start: the documentation says so."""
    model = HandWritten()

    def shift(module, args, output):
        return output + 1 if SHIFTS else None

    model.blocks[0].register_forward_hook(shift)
    assert not prepare(model, probe).acting
    assert prepare(model, probe, keep_hooks=[shift]).acting == {*model.blocks[0]._forward_hooks}


def test_a_module_level_logger_that_another_thread_writes_to_loses_nothing(probe):
    """Variables of a Python module were replaced while the probe ran, and put back afterwards."""

    class Noting(HandWritten):
        def forward(self, tokens):
            assert len(SEEN) >= 0
            return super().forward(tokens)

    SEEN.clear()
    is_over = threading.Event()
    shown = []

    def write():
        while not is_over.wait(1e-4):
            SEEN.append(len(shown))
            shown.append(SEEN[-1])

    thread = threading.Thread(target=write)
    thread.start()
    list_before = SEEN
    try:
        values(Noting(), probe)
    finally:
        is_over.set()
        thread.join()
    assert list_before is SEEN
    assert SEEN == shown == list(range(len(shown)))


class Manager:
    """The collector of balancing losses of dalin27/nanoMoE, manager.py."""

    def __init__(self):
        self.aux_loss = []

    def add(self, loss):
        self.aux_loss.append(loss)


MANAGER = Manager()


class Routed(nn.Module):
    """A router that hands its loss to a manager of the Python module in every pass
    (dalin27/nanoMoE, model.py): the training's next step adds up what is there.
    """

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(16, 4)

    def forward(self, x):
        weights = self.gate(x).softmax(-1)
        MANAGER.add(weights.mean((0, 1)).square().sum())
        return x * weights.max(-1, keepdim=True).values


@pytest.mark.parametrize("way", ["shadow", "restored"])
def test_balancing_losses_of_the_probe_are_taken_out_of_a_list_outside_of_the_model(way, probe):
    torch.manual_seed(0)
    model = HandWritten()
    model.position = nn.Sequential(model.position, Routed())
    if way == "restored":
        model.norm = torch.jit.script(model.norm)
    MANAGER.aux_loss = []
    model(random_tokens(2, 12))
    losses = list(MANAGER.aux_loss)
    rows = measure(model, probe, ["anisotropy"]).rows
    assert {row.way for row in rows} == {way}
    assert list(map(id, MANAGER.aux_loss)) == list(map(id, losses))


TABLES: dict[int, torch.Tensor] = {}


class Turned(nn.Module):
    """Rotary angles in a dictionary of the Python module, by length; masks are kept outside of the
    model in pytorch/torchtitan, torchtitan/models/attention.py.
    """

    def forward(self, x):
        if len(x) not in TABLES:
            TABLES[len(x)] = torch.outer(torch.arange(len(x)), 1 / torch.arange(1, 17))
        return x * TABLES[len(x)].cos()


def test_a_training_goes_on_with_a_table_that_a_measurement_has_made(probe):
    """A table of inference mode could not be saved for backward."""
    losses = []
    for is_measured in (False, True):
        TABLES.clear()
        torch.manual_seed(0)
        model = HandWritten()
        model.position = nn.Sequential(model.position, Turned())
        if is_measured:
            assert values(model, probe)
            assert TABLES
        loss = model(random_tokens(2, 12)).square().mean()
        loss.backward()
        losses.append((loss.item(), model.token.weight.grad.sum().item()))
    assert losses[0] == losses[1]


class AtEpoch(pl.LightningModule):
    """A forward that logs and looks at the epoch: without a trainer it is 0, and a copied module
    has none (Lightning-AI/pytorch-lightning, src/lightning/pytorch/core/module.py, __getstate__).
    """

    def __init__(self):
        super().__init__()
        self.network = HandWritten()

    def forward(self, tokens):
        self.log("epoch", float(self.current_epoch))
        return self.network(tokens) + self.current_epoch


def test_a_lightning_module_has_its_trainer_and_logs_nothing():
    torch.manual_seed(0)
    model = AtEpoch()
    model.trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    model.trainer.fit_loop.epoch_progress.current.completed = 3
    assert model.current_epoch == 3
    tokens = random_tokens(2, 12)
    other = Shadow(model).module.eval()
    assert other.trainer is model.trainer
    with torch.no_grad():
        assert torch.equal(other(tokens), model.network.eval()(tokens) + 3)


def test_autocast_of_accelerate_is_left_out_and_moved_weights_are_not_copied(probe):
    """(huggingface/accelerate, src/accelerate/accelerator.py and src/accelerate/hooks.py)"""
    torch.manual_seed(0)
    model = HandWritten()
    before = values(model, probe)
    model._original_forward = model.forward
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    rows = measure(model, probe, ["anisotropy"]).rows
    assert [row.value for row in rows] == before
    assert {row.way for row in rows} == {"shadow"}
    model.blocks[0]._hf_hook = object()
    rows = measure(model, probe, ["anisotropy"]).rows
    assert [row.value for row in rows] == before
    assert {row.way for row in rows} == {"restored"}


def test_rows_that_a_lookup_renormalises_are_restored(probe):
    """``nn.Embedding(max_norm=)`` overwrites its weight in forward (pytorch/pytorch,
    torch/nn/functional.py).
    """
    model = HandWritten()
    model.token = nn.Embedding(50, 16, max_norm=0.5)
    before = model.token.weight.detach().clone()
    values(model, probe)
    assert torch.equal(model.token.weight, before)


def test_a_class_that_refuses_to_be_copied_is_measured_and_restored(one_process, probe):
    """(pytorch/pytorch, torch/distributed/_composable/replicate.py, unimplemented_deepcopy)"""
    torch.manual_seed(0)
    model = HandWritten()
    before = values(model, probe)
    pytest.importorskip("torch.distributed._composable.replicate").replicate(model)
    model(random_tokens(2, 12)).sum().backward()
    rows = measure(model, probe, ["anisotropy"]).rows
    assert {(row.way, row.model) for row in rows} == {("restored", "HandWritten")}
    assert [row.value for row in rows] == before
    assert model.training


class Adapter(nn.Module):
    """Takes over the forward of a module, which keeps no reference to it (kohya-ss/sd-scripts,
    networks/lora.py).
    """

    def __init__(self, module):
        super().__init__()
        self.down = nn.Linear(16, 2, bias=False)
        self.up = nn.Linear(2, 16, bias=False)
        self.original = module.forward
        self.n_calls = 0
        module.forward = self.forward

    def forward(self, x):
        self.n_calls += 1
        return self.original(x) + self.up(self.down(x))


def test_a_method_put_in_forwards_place_calls_the_shadows_own(probe):
    """It keeps the model's own forward, so that no block of the shadow ran (huggingface/trl,
    trl/trainer/sft_trainer.py).
    """
    torch.manual_seed(0)
    model = HandWritten()
    expected = [row.value for row in measure(model, probe).rows]
    original_forward = model.forward

    @functools.wraps(type(model).forward)
    def fused(self, tokens, *, labels=None):
        return original_forward(tokens)

    model.forward = types.MethodType(fused, model)
    assert Shadow(model).module.forward.__func__ is not fused
    np.testing.assert_array_equal([row.value for row in measure(model, probe).rows], expected)


def test_a_forward_that_is_another_modules_method_acts_and_counts_nothing(probe):
    torch.manual_seed(0)
    model = HandWritten()
    before = values(model, probe)
    adapter = Adapter(model.blocks[1])
    assert values(model, probe) != before
    assert adapter.n_calls == 0
    other = Shadow(model).module
    tokens = random_tokens(2, 12)
    with torch.no_grad():
        assert torch.equal(other.eval()(tokens), model.eval()(tokens))


@pytest.mark.parametrize(
    "make", ["weight_norm", "spectral_norm", "pruned", "old_weight_norm", "old_spectral_norm"]
)
@pytest.mark.filterwarnings("ignore")
def test_hooks_that_make_weights_act(make, probe):
    torch.manual_seed(0)
    model = HandWritten()
    layer = model.blocks[1].feed_forward[3]
    {
        "weight_norm": parametrizations.weight_norm,
        "spectral_norm": parametrizations.spectral_norm,
        "pruned": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
        "old_weight_norm": nn.utils.weight_norm,
        "old_spectral_norm": nn.utils.spectral_norm,
    }[make](layer)
    with torch.no_grad():
        next(layer.parameters()).mul_(3)
    state = copy.deepcopy(model.state_dict())
    assert values(model, probe)
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    with torch.no_grad():
        output = Shadow(model).module.eval()(random_tokens(2, 12))
        expected = model.eval()(random_tokens(2, 12))
    assert torch.equal(output, expected)


def test_other_weights_stand_in_for_the_models_own(probe):
    torch.manual_seed(0)
    model = HandWritten()
    averaged = HandWritten()
    model.head.weight, averaged.head.weight = model.token.weight, averaged.token.weight
    before = copy.deepcopy(model.state_dict())
    parameters = {f"module.{name}": p for name, p in averaged.named_parameters()}
    options = MeasurementOptions(metrics=["anisotropy"])
    measurement = Measurement(probe=probe, options=options)
    prepared = prepare_for(torch.compile(model), measurement, parameters=parameters)
    rows = measure_with(prepared, measurement).rows
    assert [row.value for row in rows] == values(averaged, probe)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    with pytest.raises(ValueError, match="shape"):
        prepare(model, probe, parameters={"token.weight": averaged.token.weight[:3]})


def test_parts_that_are_compiled_lazy_or_of_forwards_of_their_own(probe):
    """A patched forward that still calls the original module would run blocks whose hooks nobody
    sees.
    """
    torch.manual_seed(0)
    model = HandWritten()
    plain = values(model, probe)
    model.blocks[0] = torch.compile(model.blocks[0])
    inner = model.blocks[1].forward
    model.blocks[1].forward = lambda x: inner(x)
    model.blocks[2].forward = torch.compile(model.blocks[2].forward)
    assert values(model, probe) == plain
    model.head = nn.LazyLinear(50)
    assert values(model, probe) == plain
    assert model.head.has_uninitialized_params()
    assert type(model.head) is nn.LazyLinear
    assert model.head._initialize_hook.id in model.head._forward_pre_hooks


def test_a_model_without_a_shadow_is_restored(probe):
    """Parts of TorchScript cannot be copied (BlinkDL/RWKV-LM, RWKV-v4neo/src/model.py)."""
    torch.manual_seed(0)
    model = HandWritten()
    model.blocks[0].eval()
    model.norm = torch.jit.script(model.norm)
    flags = [module.training for module in model.modules()]
    model.register_buffer("n", torch.zeros(1))
    model.seen = []

    def count(module, args):
        module.seen.append(module.n.add_(1))

    model.register_forward_pre_hook(count)
    with pytest.raises(ShadowError):
        Shadow(model)
    rows = measure(model, probe, ["anisotropy"]).rows
    assert {row.way for row in rows} == {"restored"}
    assert model.n == 0
    assert model.seen == []
    assert [module.training for module in model.modules()] == flags
    with pytest.raises(ValueError, match="copy"):
        prepare(model, probe, parameters={"token.weight": model.token.weight})


def test_weights_that_are_overwritten_out_of_sight_are_an_error(probe):
    """A later pass is not watched: the training would go on with other weights, silently."""

    class Writing(HandWritten):
        def forward(self, tokens):
            with torch._C.DisableTorchFunction():
                self.head.weight.add_(1)
            return super().forward(tokens)

    with pytest.raises(RuntimeError, match=r"head\.weight"):
        measure(Writing(), probe, ["anisotropy"])


@pytest.mark.parametrize(
    "state",
    [
        *(
            "inference",
            "no_grad",
            "autocast",
            "anomaly",
            "deterministic",
            "float64",
            "meta",
            "mode",
            "flops",
            "numpy",
        ),
        "precision",
    ],
)
def test_the_callers_settings_neither_matter_nor_change(state, probe):
    """Most are options of a trainer (Lightning-AI/pytorch-lightning,
    src/lightning/pytorch/trainer/trainer.py); FLOPs are counted in meta-pytorch/tnt,
    torchtnt/utils/flops.py, float64 and numpy's errors set in wdphy16/stat-mech-van,
    src_ising/utils.py, and devices and modes are a context in huggingface/accelerate,
    src/accelerate/big_modeling.py.
    """
    torch.manual_seed(0)
    model = HandWritten()
    torch.backends.mha.set_fastpath_enabled(True)
    at_first = settings_now()
    plain = values(model, probe)
    assert settings_now() == at_first
    mode = Counting()
    flops = FlopCounterMode(display=False)
    contexts = {
        "inference": torch.inference_mode,
        "no_grad": torch.no_grad,
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
        "meta": lambda: torch.device("meta"),
        "mode": lambda: mode,
        "flops": lambda: flops,
        "numpy": lambda: np.errstate(all="raise"),
    }
    settings = {
        "deterministic": (torch.use_deterministic_algorithms, True, False),
        "float64": (torch.set_default_dtype, torch.float64, torch.float32),
        "precision": (torch.set_float32_matmul_precision, "medium", "highest"),
    }
    set_, there, back = settings.get(state, (lambda _: None, None, None))
    set_(there)
    try:
        with contexts.get(state, torch.enable_grad)():
            before = settings_now()
            n_before = mode.n
            with_settings = values(model, probe)
            assert mode.n == n_before
            assert settings_now() == before
    finally:
        set_(back)
    assert with_settings == plain
    assert flops.get_total_flops() == 0
    model(random_tokens(2, 12)).sum().backward()


def settings_now():
    return (
        *(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.backends.mha.get_fastpath_enabled(),
        ),
        *(
            torch.is_anomaly_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_default_dtype(),
        ),
        *(torch.get_default_device(), torch.get_float32_matmul_precision(), str(np.geterr())),
    )
