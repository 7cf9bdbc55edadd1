"""What the nearest neighbour of a vector is, and the dimension of clouds without repeated inputs.

Brute force in float64, independent of the package's kernels. DATA is a folder with
enwiki_extract.txt.xz and stories260K-hf; a study of other weights takes their folder.

    OMP_NUM_THREADS=1 python benchmarks/nearest_tokens.py synthetic
    OMP_NUM_THREADS=1 python benchmarks/nearest_tokens.py scales
    OMP_NUM_THREADS=1 python benchmarks/nearest_tokens.py tiny --data DATA
    OMP_NUM_THREADS=1 python benchmarks/nearest_tokens.py pretrained --data DATA --weights FOLDER
    OMP_NUM_THREADS=1 python benchmarks/nearest_tokens.py coverage --data DATA

nearest_tokens_verdict.py judges the tables.
"""

from __future__ import annotations

import argparse
import lzma
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

LENGTH = 80
N_WINDOWS = 512
PER_WINDOW = 8
N_INPUTS = 2048
N_DRAWS = 8
OUTPUT = Path(__file__).parents[1] / "docs" / "neighbours"


# Clouds


@dataclass
class Cloud:
    """Vectors, each with the token, the position and the window that it comes from."""

    vectors: Tensor
    tokens: Tensor
    positions: Tensor
    windows: Tensor

    def __getitem__(self, index: Tensor) -> Cloud:
        return Cloud(
            vectors=self.vectors[index],
            tokens=self.tokens[index],
            positions=self.positions[index],
            windows=self.windows[index],
        )

    @property
    def inputs(self) -> Tensor:
        """Return a number for each token at a position, which equal inputs share."""
        return self.tokens * (int(self.positions.max()) + 1) + self.positions


def all_vectors(ids: Tensor, states: Tensor) -> Cloud:
    """Return the vectors of all positions but the first, in float64 and centred."""
    n_windows, length = ids.shape
    vectors = states[:, 1:].flatten(0, 1).double()
    return Cloud(
        vectors=vectors - vectors.mean(0),
        tokens=ids[:, 1:].flatten(),
        positions=torch.arange(1, length).repeat(n_windows),
        windows=torch.arange(n_windows).repeat_interleave(length - 1),
    )


def draw(labels: Tensor | None, windows: Tensor, n_most: int, per_window: int, seed: int) -> Tensor:
    """Draw vectors in random order, at most one of each label and some of each window."""
    order = np.random.default_rng(seed).permutation(len(windows))
    names = order if labels is None else labels.numpy()[order]
    seen: set[int] = set()
    taken: dict[int, int] = {}
    drawn = []
    for index, name, window in zip(
        order.tolist(), names.tolist(), windows.numpy()[order].tolist(), strict=True
    ):
        if len(drawn) == n_most:
            break
        if name in seen or taken.get(window, 0) == per_window:
            continue
        seen.add(name)
        taken[window] = taken.get(window, 0) + 1
        drawn.append(index)
    return torch.tensor(drawn)


# Estimates


def fit(ratios: np.ndarray, discard: float = 0.1) -> float:
    """Fit the dimension to ratios of the two nearest distances."""
    x = np.log(np.sort(ratios))
    n_kept = int(len(x) * (1 - discard))
    y = -np.log(1 - np.arange(1, n_kept + 1) / len(x))
    return float(x[:n_kept] @ y / (x[:n_kept] @ x[:n_kept]))


def jackknife(ratios: np.ndarray, windows: np.ndarray) -> float:
    """Return the standard error from 64 groups of windows left out in turn."""
    names, number = np.unique(windows, return_inverse=True)
    n_groups = min(64, len(names))
    group = (np.random.default_rng(0).permutation(len(names)) % n_groups)[number]
    others = [group != left_out for left_out in range(n_groups)]
    without = np.array([fit(ratios[of_others]) for of_others in others])
    return float(1.2 * np.sqrt((n_groups - 1) * without.var()))


def squared_distances(vectors: Tensor) -> Tensor:
    """Return the squared distances between all vectors, infinite from a vector to itself."""
    squares = (vectors**2).sum(1)
    result = torch.addmm(squares[:, None] + squares, vectors, vectors.T, alpha=-2).clamp_(min=0)
    return result.fill_diagonal_(torch.inf)


def measure(
    cloud: Cloud, excluded: str = "window", third_token: bool = False, error: bool = False
) -> dict[str, float]:
    """Estimate the dimension of a cloud and say what the nearest neighbours are.

    Exact copies are one point. A neighbour is never of the own window, if excluded is "window" or
    "token"; nor of the own token, if it is "token". With third_token the second neighbour is of a
    token that is neither the point's nor the first neighbour's.
    """
    distances = squared_distances(cloud.vectors)
    tiny = 1e-12 * float((cloud.vectors**2).sum(1).mean())
    closest, anywhere = distances.min(1)
    if (closest <= tiny).any():
        is_first = ~(distances <= tiny).tril(-1).any(1)
        cloud = cloud[is_first]
        distances = distances[is_first][:, is_first]
        anywhere = distances.min(1).indices
    rows = torch.arange(len(distances))
    own_window = (cloud.windows[anywhere] == cloud.windows).double().mean()
    if excluded != "none":
        distances.masked_fill_(cloud.windows[:, None] == cloud.windows, torch.inf)
    if excluded == "token":
        distances.masked_fill_(cloud.tokens[:, None] == cloud.tokens, torch.inf)
    shortest, first = distances.min(1)
    distances[rows, first] = torch.inf
    if third_token:
        distances.masked_fill_(cloud.tokens[first][:, None] == cloud.tokens, torch.inf)
    second = distances.min(1).values
    same_token = cloud.tokens[first] == cloud.tokens
    same_input = same_token & (cloud.positions[first] == cloud.positions)
    is_valid = (shortest > tiny) & second.isfinite()
    ratios = (second / shortest)[is_valid].sqrt().numpy()
    windows = cloud.windows[rows[is_valid]].numpy()
    return {
        "n": len(cloud.vectors),
        "dimension": fit(ratios),
        "std_error": jackknife(ratios, windows) if error else np.nan,
        "same_input": float(same_input.double().mean()),
        "same_token": float(same_token.double().mean()),
        "own_window": float(own_window),
    }


# Synthetic clouds of known dimension


def synthetic(_: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Measure types on a d-dimensional Gaussian, each with a small cloud of occurrences."""
    n_types = 1500
    frequencies = 1 / np.arange(1, n_types + 1)
    frequencies /= frequencies.sum()
    for d in (4, 8, 16):
        for seed in range(N_DRAWS):
            generator = torch.Generator().manual_seed(seed)
            embed = torch.linalg.qr(torch.randn(64, 64, generator=generator).double()).Q
            centres = torch.randn(n_types, d, generator=generator).double() @ embed[:d]
            draws = np.random.default_rng(seed).choice(n_types, 4096, p=frequencies)
            tokens = torch.tensor(draws)
            small = d // 4
            noise = torch.randn(4096, small, generator=generator).double() @ embed[-small:]
            # radius of the occurrences: a tenth of the types'
            vectors = centres[tokens] + 0.1 * (d / small) ** 0.5 * noise
            windows = torch.arange(N_WINDOWS).repeat_interleave(PER_WINDOW)
            cloud = Cloud(
                vectors=vectors, tokens=tokens, positions=torch.zeros_like(tokens), windows=windows
            )
            types = draw(tokens, windows, 4096, PER_WINDOW, seed)
            fresh = torch.randn(len(types), d, generator=generator).double() @ embed[:d]
            plain = cloud[draw(None, windows, len(types), PER_WINDOW, seed)]
            by_cloud = {
                "today": measure(cloud),
                "one of each type": measure(cloud[types], error=True),
                "plain": measure(plain),
                "without repeats": measure(
                    Cloud(
                        vectors=fresh,
                        tokens=tokens[types],
                        positions=tokens[types],
                        windows=windows[types],
                    )
                ),
                "without the same token": measure(cloud, "token"),
                "second of a third token": measure(cloud, "token", third_token=True),
            }
            for name, values in by_cloud.items():
                yield {"d": d, "draw": seed, "cloud": name, **values}


def scales(_: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Measure clouds without any repeat, in which each type has one occurrence, for radii of these.

    As many vectors as there are types in the synthetic texts. With a radius of 0 they are a
    Gaussian in d dimensions; with others, the dimension at the scale of the nearest neighbours.
    """
    n, width = 854, 64
    labels = torch.arange(n)
    for d in (4, 8, 16):
        for radius in (0.0, 0.02, 0.05, 0.1, 0.2):
            for seed in range(2 * N_DRAWS):
                generator = torch.Generator().manual_seed(seed)
                embed = torch.linalg.qr(torch.randn(width, width, generator=generator).double()).Q
                small = d // 4
                centres = torch.randn(n, d, generator=generator).double() @ embed[:d]
                noise = torch.randn(n, small, generator=generator).double() @ embed[-small:]
                vectors = centres + radius * (d / small) ** 0.5 * noise
                values = measure(
                    Cloud(vectors=vectors, tokens=labels, positions=labels, windows=labels)
                )
                yield {"d": d, "radius": radius, "draw": seed, **values}


# Texts and models


def wikipedia(data: Path) -> str:
    """Return the beginning of the extract."""
    with lzma.open(data / "enwiki_extract.txt.xz", "rt", encoding="utf-8") as file:
        return file.read(6_000_000)


def topics() -> str:
    """Return the help texts of Python."""
    spec = find_spec("pydoc_data.topics")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


def tokenized(n_tokens: int, text: str) -> Callable[[str], Tensor]:
    """Return what turns a text into tokens: bytes for 256, else byte pairs learnt on the text."""
    if n_tokens == 256:
        return lambda new: torch.tensor(list(new.encode()))
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([text[:1_000_000]], n_tokens, show_progress=False)
    return lambda new: torch.tensor(tokenizer.encode(new).ids)


def cut(ids: Tensor, length: int, n: int, seed: int = 0) -> Tensor:
    """Return n random windows of a length, which do not overlap."""
    rows = ids[: len(ids) // length * length].view(-1, length)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return rows[order[:n]]


def tiny_model(positions: str, n_tokens: int, seed: int = 0) -> nn.Module:
    """Return an untrained decoder of 4 blocks of 64."""
    from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

    torch.manual_seed(seed)
    if positions == "rotary":
        return GPTNeoXForCausalLM(
            GPTNeoXConfig(
                hidden_size=64,
                num_hidden_layers=4,
                num_attention_heads=4,
                intermediate_size=256,
                max_position_embeddings=128,
                vocab_size=n_tokens,
            )
        )
    model = GPT2LMHeadModel(
        GPT2Config(n_embd=64, n_layer=4, n_head=4, n_positions=128, vocab_size=n_tokens)
    )
    if positions == "none":
        model.transformer.wpe.weight.requires_grad_(False).zero_()
    return model


def trained(model: nn.Module, ids: Tensor, steps: tuple[int, ...]) -> Iterator[int]:
    """Train a model, yielding at each of the steps."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    generator = torch.Generator().manual_seed(0)
    rows = ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)
    for step in range(max(steps) + 1):
        if step in steps:
            model.eval()
            yield step
            model.train()
        batch = rows[torch.randint(0, len(rows), (16,), generator=generator)]
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def hidden(model: nn.Module, ids: Tensor) -> list[Tensor]:
    """Return the hidden states of all layers, (windows, length, width)."""
    parts = [
        model(input_ids=batch, output_hidden_states=True).hidden_states for batch in ids.split(32)
    ]
    return [torch.cat(layer) for layer in zip(*parts, strict=True)]


def random_order(ids: Tensor) -> Tensor:
    """Return windows whose tokens are in random order."""
    generator = torch.Generator().manual_seed(0)
    return torch.stack([row[torch.randperm(len(row), generator=generator)] for row in ids])


# Studies


def clouds_of(everything: Cloud, full: bool) -> Iterator[tuple[str, int, dict[str, float]]]:
    """Measure all clouds of a layer: the name, the draw and the values of each."""
    windows, inputs = everything.windows, everything.inputs
    is_sampled = draw(None, windows, N_WINDOWS * PER_WINDOW, PER_WINDOW, 0)
    sampled = everything[is_sampled]
    yield "today", 0, measure(sampled, error=True)
    reached = min(N_INPUTS, len(draw(inputs, windows, N_INPUTS, PER_WINDOW, 0)))
    for seed in range(N_DRAWS):
        drawn = everything[draw(inputs, windows, reached, PER_WINDOW, seed)]
        yield "inputs", seed, measure(drawn, error=True)
        types = everything[draw(everything.tokens, windows, N_INPUTS, PER_WINDOW, seed)]
        yield "types", seed, measure(types, error=True)
        if seed < 2:
            plain = sampled[draw(None, sampled.windows, reached, PER_WINDOW, seed)]
            yield "plain", seed, measure(plain)
            few = types[torch.arange(len(types.vectors) // 2)]
            yield "types, half", seed, measure(few)
            for n in (512, 1024):
                if n < reached:
                    yield f"inputs, {n}", seed, measure(drawn[torch.arange(n)])
                    yield f"plain, {n}", seed, measure(plain[torch.arange(n)])
    if not full:
        return
    among = sampled[draw(sampled.inputs, sampled.windows, N_INPUTS, PER_WINDOW, 0)]
    yield "inputs among the sampled", 0, measure(among)
    n_among = len(among.vectors)
    equal = everything[draw(inputs, windows, n_among, PER_WINDOW, 1)]
    yield "inputs, as many as among the sampled", 0, measure(equal)
    for cap in (4, LENGTH):
        drawn = everything[draw(inputs, windows, reached, cap, 0)]
        yield f"inputs, at most {cap} of a window", 0, measure(drawn)
        yield f"inputs, at most {cap} of a window, own window allowed", 0, measure(drawn, "none")
    drawn = everything[draw(inputs, windows, reached, PER_WINDOW, 0)]
    yield "inputs, own window allowed", 0, measure(drawn, "none")
    yield "today without the same token", 0, measure(sampled, "token")
    yield "today, second of a third token", 0, measure(sampled, "token", third_token=True)
    deviation, mean = everything.vectors, everything.vectors.mean(0)
    covariance = (deviation - mean).T @ (deviation - mean) / len(deviation)
    values, directions = torch.linalg.eigh(covariance)
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(len(sampled.vectors), len(values), generator=generator).double()
    gaussian = Cloud(
        vectors=normal * values.clamp(min=0).sqrt() @ directions.T,
        tokens=sampled.tokens,
        positions=sampled.positions,
        windows=sampled.windows,
    )
    one_each = draw(sampled.inputs, sampled.windows, n_among, PER_WINDOW, 0)
    yield "gaussian, inputs", 0, measure(gaussian[one_each])
    at_random = draw(None, sampled.windows, n_among, PER_WINDOW, 0)
    yield "gaussian, plain", 0, measure(gaussian[at_random])


def tiny(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Measure tiny decoders: vocabulary, position kind, steps, text, length and order."""
    text = wikipedia(options.data)
    other = topics()
    for n_tokens in options.vocabularies:
        encode = tokenized(n_tokens, text)
        training = encode(text[:1_500_000])
        held_out = encode(text[3_000_000:6_000_000])
        other_ids = encode(other)
        for positions in options.positions:
            model = tiny_model(positions, n_tokens)
            for step in trained(model, training, (0, 60, 300)):
                base = {"vocabulary": n_tokens, "positions": positions, "step": step}
                texts = [("wikipedia", LENGTH, cut(held_out, LENGTH, N_WINDOWS))]
                if step != 60:
                    texts += [
                        ("wikipedia", 40, cut(held_out, 40, N_WINDOWS)),
                        ("wikipedia", 128, cut(held_out, 128, N_WINDOWS)),
                        ("topics", LENGTH, cut(other_ids, LENGTH, N_WINDOWS)),
                        ("wikipedia, shuffled", LENGTH, random_order(texts[0][2])),
                    ]
                for name, length, ids in texts:
                    states = hidden(model, ids)
                    is_main = name == "wikipedia" and length == LENGTH
                    for block in (1, 4):
                        about = {**base, "text": name, "length": length, "block": block}
                        everything = all_vectors(ids, states[block])
                        clouds = clouds_of(everything, True) if is_main else short(everything)
                        for cloud, seed, values in clouds:
                            yield {**about, "cloud": cloud, "draw": seed, **values}


def short(everything: Cloud) -> Iterator[tuple[str, int, dict[str, float]]]:
    """Measure 1,024 vectors by each rule, as a comparison of lengths and texts needs them."""
    windows = everything.windows
    for seed in range(2):
        drawn = draw(everything.inputs, windows, 1024, PER_WINDOW, seed)
        yield "inputs, 1024", seed, measure(everything[drawn])
        plain = draw(None, windows, 1024, 2, seed)
        yield "plain, 1024", seed, measure(everything[plain])


def reach(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Count the distinct inputs and types that 512 windows of 80 tokens have."""
    text = wikipedia(options.data)
    other = topics()
    encoders = [(str(n), tokenized(n, text)) for n in (256, 512, 4096)]
    if options.weights is not None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(options.weights)
        encoders.append(
            (
                str(tokenizer.vocab_size),
                lambda new: torch.tensor(tokenizer(new, add_special_tokens=False)["input_ids"]),
            )
        )
    for name, encode in encoders:
        for which, source in (("wikipedia", text[3_000_000:6_000_000]), ("topics", other)):
            ids = cut(encode(source), LENGTH, N_WINDOWS)
            n_windows = len(ids)
            cloud = all_vectors(ids, torch.zeros(*ids.shape, 1))
            sampled = cloud[draw(None, cloud.windows, n_windows * PER_WINDOW, PER_WINDOW, 0)]
            row = {"vocabulary": name, "text": which, "windows": n_windows}
            for what in ("inputs", "tokens"):
                labels = getattr(cloud, what)
                row[f"{what}, all"] = len(labels.unique())
                row[f"{what} among the sampled"] = len(getattr(sampled, what).unique())
                for cap in (2, 4, 8, 16):
                    drawn = draw(labels, cloud.windows, 99_999, cap, 0)
                    row[f"{what}, at most {cap} of a window"] = len(drawn)
            yield row


def pretrained(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Measure all blocks of published weights."""
    from transformers import AutoModel, AutoTokenizer

    text = wikipedia(options.data)
    folder = options.weights or options.data / "stories260K-hf"
    name = options.name or folder.name
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).float().eval()
    ids = torch.tensor(tokenizer(text[3_000_000:4_500_000], add_special_tokens=False)["input_ids"])
    windows = cut(ids, LENGTH, N_WINDOWS)
    states = hidden(model, windows)
    for block in range(1, len(states)):
        for cloud, seed, values in clouds_of(all_vectors(windows, states[block]), True):
            yield {"model": name, "block": block, "cloud": cloud, "draw": seed, **values}


def coverage(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Measure disjoint probes of one text, each with its jackknife.

    Without vocabularies the model is stories260K, otherwise tiny decoders of these vocabularies.
    """
    text = wikipedia(options.data)
    held_out = text[1_500_000:4_500_000]
    if not options.vocabularies:
        from transformers import AutoModel, AutoTokenizer

        folder = options.data / "stories260K-hf"
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModel.from_pretrained(folder).float().eval()
        ids = torch.tensor(tokenizer(held_out, add_special_tokens=False)["input_ids"])
        yield from _probes("stories260K", model, ids, (1, 3, 5), options.probes)
    for n_tokens in options.vocabularies:
        encode = tokenized(n_tokens, text)
        ids = encode(held_out)
        training = encode(text[:1_500_000])
        for positions in options.positions:
            model = tiny_model(positions, n_tokens)
            for step in trained(model, training, tuple(options.steps)):
                name = f"{n_tokens} tokens, positions {positions}, {step}"
                yield from _probes(name, model, ids, (1, 4), options.probes)


def _probes(
    name: str, model: nn.Module, stream: Tensor, blocks: tuple[int, ...], n_probes: int
) -> Iterator[dict[str, object]]:
    windows = cut(stream, LENGTH, n_probes * N_WINDOWS)
    for number, ids in enumerate(windows.split(N_WINDOWS)):
        states = hidden(model, ids)
        for block in blocks:
            cloud = all_vectors(ids, states[block])
            for what, labels in (("inputs", cloud.inputs), ("types", cloud.tokens)):
                drawn = draw(labels, cloud.windows, N_INPUTS, PER_WINDOW, number)
                row = {"model": name, "block": block, "probe": number, "cloud": what}
                yield {**row, **measure(cloud[drawn], error=True)}


STUDIES = {
    "synthetic": synthetic,
    "scales": scales,
    "reach": reach,
    "tiny": tiny,
    "pretrained": pretrained,
    "coverage": coverage,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--data", type=Path, help="folder with the text and stories260K-hf")
    parser.add_argument("--weights", type=Path, help="folder of published weights")
    parser.add_argument("--name", help="name of these weights in the table")
    parser.add_argument("--vocabularies", type=int, nargs="*", default=(256, 512, 4096))
    parser.add_argument("--steps", type=int, nargs="+", default=(0, 300), help="of coverage")
    parser.add_argument("--positions", nargs="+", default=("learned", "rotary", "none"))
    parser.add_argument("--probes", type=int, default=12, help="default: %(default)s")
    parser.add_argument("--output", type=Path, help="file for the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = options.output or OUTPUT / f"{options.study}.csv"
    start = time.monotonic()
    rows = []
    for row in STUDIES[options.study](options):
        rows.append(row)
        if len(rows) % 50 == 1:
            print(f"{time.monotonic() - start:.0f} s, {len(rows)} rows: {row}", flush=True)
            pd.DataFrame(rows).to_csv(path, index=False, float_format="%.4g")
    pd.DataFrame(rows).to_csv(path, index=False, float_format="%.4g")
    print(f"{time.monotonic() - start:.0f} s, {len(rows)} rows in {path}")


if __name__ == "__main__":
    main()
