"""The options of `train-tokenizer`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from beam_pipeline.options.console_options import ConsoleConfig
from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.options.option_fields import Options, option
from beam_pipeline.options.option_values import refuse_overwrite_and_resume
from beam_pipeline.support.errors import UsageError
from tokenmill_reader.console.escaping import excerpt
from tokenmill_reader.format.limits import SEEDS

_LONGEST_SPECIAL_TOKEN = 64
_MOST_SPECIAL_TOKENS = 256


@dataclass(frozen=True, kw_only=True)
class TrainTokenizerConfig(Options):
    """Trains a tokenizer on the words of a corpus, all of which are counted.

    Examples:
        tokenmill train-tokenizer --input 'texts/*.txt' --output tokenizer
        tokenmill train-tokenizer --input 'texts/*.jsonl.gz' --model unigram --vocab_size 32000 --output tokenizer
        tokenmill train-tokenizer --dataset_name my/dataset --model wordpiece --lowercase --output tokenizer

    Any other option is passed to Beam, e.g. --runner DataflowRunner. Without --runner, this process runs the
    pipeline.
    """

    verb: ClassVar[str] = "train-tokenizer"
    takes_beam_options: ClassVar[bool] = True

    input: InputConfig
    on_bad_record: Literal["fail", "skip"] = option("fail", topic="input")
    """Treatment of records that are not documents: fail ends the run; skip ignores them."""
    model: Literal["bpe", "unigram", "wordpiece"] = option("bpe", topic="tokenizer")
    """Kind of tokenizer. bpe and unigram are byte-level: decoding gives every text again, with its white space. bpe
    adds no special tokens, like GPT-2; unigram puts <s> and </s> around a text, like RoBERTa. wordpiece is BERT's: it
    keeps neither line breaks nor other white space, and words with characters that are rare in the text become
    [UNK]."""
    lowercase: bool = False
    """wordpiece: fold case and accents, as BERT's uncased models do."""
    normalize: bool = False
    """bpe, unigram: fold each text before it is encoded: to Unicode's NFKC (such as ﬁ to fi and ½ to 1⁄2), each run of
    white space, line breaks included, to one space, and white space at the end to nothing."""
    vocab_size: int = option(25000, metavar="N", bounds=(300, 1 << 20))
    """Number of tokens, special tokens included; fewer if the text does not support as many."""
    special_tokens: tuple[str, ...] = option((), metavar="TOKEN")
    """Further special tokens, e.g. those of a chat template or of infilling. No text contains them, whatever it spells.
    They are the last of the --vocab_size tokens."""
    strict: bool = False
    """Fail if the text does not support --vocab_size tokens."""
    seed: int = option(0, metavar="N", bounds=SEEDS)
    """Seed of the shares of --mix, and of the sample of documents that the summary describes."""
    output: str = option(topic="output", metavar="DIR", affects_bytes=False)
    """Folder for the tokenizer; AutoTokenizer loads it."""
    push_to_hub: str | None = option(None, metavar="REPO", affects_bytes=False)
    """Also commit the tokenizer to this model repository on the hub."""
    overwrite: bool = option(False, affects_bytes=False)
    """Replace the tokenizer in DIR."""
    resume: bool = option(False, affects_bytes=False)
    """Keep the tokenizer in DIR if it was made from the same input with the same options."""
    console: ConsoleConfig = option(ConsoleConfig())

    def __post_init__(self) -> None:
        refuse_overwrite_and_resume(overwrite=self.overwrite, resume=self.resume)
        if self.input.content != "text":
            raise UsageError(
                f"--content {self.input.content}: a tokenizer learns from texts; give the messages' texts as jsonl"
            )
        _check_special_tokens(self.special_tokens)
        if self.lowercase and self.model != "wordpiece":
            raise UsageError(f"--lowercase: requires --model wordpiece; a {self.model} tokenizer keeps case")
        if self.normalize and self.model == "wordpiece":
            raise UsageError(
                "--normalize: a wordpiece tokenizer folds white space anyway, as BERT's do; omit it"
            )

    def identity(self) -> dict[str, Any]:
        """See `Options.identity`."""
        values = super().identity()
        # The sample is a share of the corpus's size, which for a table is an estimate that depends on its units.
        if not self.input.dataset:
            del values["unit_bytes"]
        return values


def _check_special_tokens(tokens: Sequence[str]) -> None:
    if len(tokens) > _MOST_SPECIAL_TOKENS:
        raise UsageError(
            f"--special_tokens: has {len(tokens)} tokens, and at most {_MOST_SPECIAL_TOKENS} are added"
        )
    for number, token in enumerate(tokens):
        if (
            not token
            or token != token.strip()
            or not token.isprintable()
            or len(token) > _LONGEST_SPECIAL_TOKEN
        ):
            raise UsageError(
                f"--special_tokens {excerpt(repr(token), 80)}: a token has 1 to {_LONGEST_SPECIAL_TOKEN} printable "
                "characters, and no space at its ends"
            )
        if token in tokens[:number]:
            raise UsageError(f"--special_tokens {token}: is given twice")
