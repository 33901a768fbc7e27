"""Where the demo's files lie, and the command lines that make them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.steps import Step

ROOT = Path(__file__).resolve().parents[1]
SPLITS = {"train": 0.95, "validation": 0.05}

_MAX_LENGTH = 128
_SENTENCES = 5
_GUESSES = 5

# The size of a vocabulary that a text is enough for: a token for every so many bytes, within these bounds.
_BYTES_PER_TOKEN = 100
_LEAST_TOKENS, _MOST_TOKENS = 2000, 8000

# What decides a step's result besides its command and its data: the code, and the versions it runs on.
_PIPELINE_CODE = ("beam_pipeline/**/*.py", "requirements-dev.lock")
_TRAINER_CODE = ("trainer/tpu_trainer/**/*.py", "trainer/requirements-dev.lock")


@dataclass(frozen=True)
class Paths:
    """The demo's output folder, and what lies in it."""

    output: Path

    @property
    def stamps(self) -> Path:
        """What each step was made from."""
        return self.output / ".steps"

    @property
    def corpus(self) -> Path:
        """The default text."""
        return self.output / "corpus.jsonl"

    @property
    def tokenizer(self) -> Path:
        """What `train-tokenizer` writes."""
        return self.output / "tokenizer"

    @property
    def dataset(self) -> Path:
        """What `prepare` writes."""
        return self.output / "dataset"

    @property
    def run(self) -> Path:
        """What `fit` writes."""
        return self.output / "run"

    @property
    def fitted(self) -> Path:
        """The run's summary, written last."""
        return self.run / "summary.json"

    @property
    def evaluated(self) -> Path:
        """What `evaluate` writes."""
        return self.run / "evaluation.json"

    @property
    def model(self) -> Path:
        """What `export` writes."""
        return self.output / "model"

    @property
    def sentences(self) -> Path:
        """What `demo.sentences` writes."""
        return self.output / "sentences"

    @property
    def chosen(self) -> Path:
        """The sentences, with the masked words."""
        return self.sentences / "sentences.jsonl"

    @property
    def masked(self) -> Path:
        """The sentences with the masks in them, one a line."""
        return self.sentences / "masked.txt"


def vocabulary_size(text_bytes: int) -> int:
    """How many tokens to ask a tokenizer of for a text of this size."""
    return min(_MOST_TOKENS, max(_LEAST_TOKENS, text_bytes // _BYTES_PER_TOKEN))


def corpus_step(paths: Paths) -> Step:
    """Python's own documentation → a text to learn from."""
    return Step(
        name="corpus",
        title="Collect English prose from this Python's documentation",
        command=(sys.executable, "-m", "demo.corpus", str(paths.corpus)),
        inputs=_code("demo/corpus.py"),
        output=paths.corpus,
        needed=(paths.corpus,),
    )


def later_steps(paths: Paths, *, inputs: Sequence[Path], config: Path, trainer: Path) -> list[Step]:
    """The steps from a text to answers, in order.

    Args:
      paths: where everything goes.
      inputs: the files of the text.
      config: the trainer's YAML file.
      trainer: the Python of the trainer's environment.
    """
    pipeline_code, trainer_code = _code(*_PIPELINE_CODE), _code(*_TRAINER_CODE)
    tokenizer = paths.tokenizer / "tokenizer.json"
    train, validation = (paths.dataset / split for split in SPLITS)
    manifests = (train / "manifest.json", validation / "manifest.json")
    weights = paths.model / "model.safetensors"
    return [
        Step(
            name="tokenizer",
            title="Train a Unigram tokenizer",
            command=_command(
                (sys.executable, "-m", "beam_pipeline", "train-tokenizer", "--allow_smaller_vocab"),
                {
                    "input": inputs,
                    "model": "unigram",
                    "vocab_size": vocabulary_size(sum(path.stat().st_size for path in inputs)),
                    "output": paths.tokenizer,
                },
            ),
            inputs=(*inputs, *pipeline_code),
            output=paths.tokenizer,
            needed=(tokenizer,),
        ),
        Step(
            name="prepare",
            title="Write the dataset: rows of tokens in shards, for training and for validation",
            command=_command(
                (sys.executable, "-m", "beam_pipeline", "prepare", "--resume"),
                {
                    "input": inputs,
                    "tokenizer": paths.tokenizer,
                    "output": paths.dataset,
                    "max_length": _MAX_LENGTH,
                    "splits": ",".join(f"{split}={share}" for split, share in SPLITS.items()),
                    "split_by": "text",
                },
            ),
            inputs=(*inputs, tokenizer, *pipeline_code),
            output=paths.dataset,
            needed=manifests,
            resumes=True,
        ),
        Step(
            name="fit",
            title="Train a small RoBERTa from scratch",
            command=_command(
                (str(trainer), "-m", "tpu_trainer", "fit"),
                {
                    "config": config,
                    "data.train": train,
                    "data.validation": validation,
                    "output_dir": paths.run,
                },
            ),
            inputs=(config, *manifests, *trainer_code),
            output=paths.run,
            needed=(paths.fitted,),
            resumes=True,
        ),
        Step(
            name="evaluate",
            title="Evaluate it on the validation split",
            command=_command((str(trainer), "-m", "tpu_trainer", "evaluate"), {"run": paths.run}),
            inputs=(paths.fitted, *trainer_code),
            output=paths.evaluated,
            needed=(paths.evaluated,),
            quiet=True,
        ),
        Step(
            name="export",
            title="Export it as a Hugging Face model",
            command=_command(
                (str(trainer), "-m", "tpu_trainer", "export"), {"run": paths.run, "output": paths.model}
            ),
            inputs=(paths.fitted, *trainer_code),
            output=paths.model,
            needed=(weights,),
        ),
        Step(
            name="sentences",
            title="Mask a word in each of a few held-out sentences",
            command=_command(
                (sys.executable, "-m", "demo.sentences"),
                {"split": validation, "count": _SENTENCES, "output": paths.sentences},
            ),
            inputs=(*manifests, *_code("demo/sentences.py"), *pipeline_code),
            output=paths.sentences,
            needed=(paths.chosen, paths.masked),
        ),
        Step(
            name="fill-mask",
            title="Fill the masks",
            command=_command(
                (str(trainer), "-m", "tpu_trainer", "fill-mask"), {"model": paths.model, "top_k": _GUESSES}
            ),
            inputs=(weights, paths.masked, *trainer_code),
            stdin=paths.masked,
            quiet=True,
        ),
    ]


def _command(program: Sequence[str], options: Mapping[str, object]) -> tuple[str, ...]:
    """A command line: each option with its value, or with all values of a sequence."""
    words = list(program)
    for name, value in options.items():
        values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        words += [f"--{name}", *map(str, values)]
    return tuple(words)


def _code(*patterns: str) -> tuple[Path, ...]:
    return tuple(path for pattern in patterns for path in sorted(ROOT.glob(pattern)))
