"""Pretrain a small encoder or decoder and watch its geometry while it trains.

python train.py                                                   the quickstart, on built-in text
python train.py fit --config configs/decoder_enwik8.yaml          a decoder on enwik8
python train.py fit --config configs/encoder_enwik8.yaml          an encoder on enwik8
python train.py fit --config configs/quickstart.yaml --model.family bert --trainer.max_steps 200
python train.py fit --config configs/quickstart.yaml --print_config
python train.py fit --help                                        --help all for every option
"""

import sys
from importlib.resources import files
from pathlib import Path

QUICKSTART = Path(__file__).parent / "configs" / "quickstart.yaml"

if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.argv += ["fit", "--config", str(QUICKSTART)]
    if sys.argv[-1] in {"-h", "--help"}:
        # the options that most runs need, as a file: those of the parser take many seconds to find
        print((files("repdyn.cli") / "train_help.txt").read_text(encoding="utf-8"), end="")
    else:
        if sys.argv[-2:] == ["--help", "all"]:
            sys.argv.pop()
        try:
            from repdyn.cli.train import TrainCLI  # with Lightning, which help does not wait for

            TrainCLI()
        except KeyboardInterrupt:
            # before the training: once it has begun, Lightning ends it
            print("stopped", file=sys.stderr)
            sys.exit(130)
