"""Train a small decoder on the built-in text, and compare it with earlier trainings as it goes.

    for seed in 1 2 3 4; do python examples/baselines.py $seed --store runs/good$seed; done
    python examples/baselines.py 5 --store runs/sound --against 'runs/good*'
    python examples/baselines.py 5 --store runs/shuffled --against 'runs/good*' --shuffled

Each takes some ten seconds on one core. The last one predicts labels in random order, which alone
looks like a training: its loss falls.
"""

import argparse

import torch

from repdyn import Probe, Tracker
from repdyn.data.tokens import byte_tokenizer
from repdyn.models import build_model
from repdyn.probe.corpus import load_corpus

STEPS = 100
BATCH = 8
LENGTH = 64


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seed", type=int)
    parser.add_argument("--store", required=True, help="folder of the run")
    parser.add_argument("--against", help="folders of earlier runs, with * for any characters")
    parser.add_argument("--shuffled", action="store_true", help="labels are in random order")
    options = parser.parse_args()
    text = load_corpus("builtin").data
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    held_out = text[-200_000:].decode(errors="replace")
    probe = Probe.from_texts([held_out], byte_tokenizer(), max_vectors=1024, batch_vectors=512)
    torch.manual_seed(options.seed)
    model = build_model(
        "gpt_neox", vocab_size=260, hidden_size=48, n_layers=3, n_heads=2, context_length=LENGTH
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with Tracker(
        model, probe, schedule=10, store=options.store, against=options.against
    ) as tracker:
        for _ in range(STEPS):
            starts = torch.randint(len(tokens) - 200_000 - LENGTH, (BATCH,))
            batch = tokens[starts[:, None] + torch.arange(LENGTH)]
            labels = batch
            if options.shuffled:
                labels = batch.flatten()[torch.randperm(batch.numel())].view(batch.shape)
            loss = model(input_ids=batch, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            tracker.step(loss=loss)


if __name__ == "__main__":
    main()
