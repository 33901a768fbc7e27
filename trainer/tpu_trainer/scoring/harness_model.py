"""The model of lm-eval whose steps this program executes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from tokenmill_reader.console.terminal import shows_bars
from tpu_trainer.data.target_rows import causal_row
from tpu_trainer.scoring.scorer import Scorer
from tpu_trainer.support.errors import UsageError

TokenRequest = tuple[Any, Sequence[int], Sequence[int]]
"""lm-eval's key, and the ids of a context and of its continuation."""


class HarnessModel(TemplateLM):
    """A causal model. Its tokens are those that lm-eval's own class for Hugging Face models makes."""

    def __init__(self, scorer: Scorer) -> None:
        super().__init__()
        self._scorer = scorer
        self.tokenizer = scorer.model.tokenizer
        if scorer.model.prefix_id is None:
            raise UsageError(
                "the tokenizer has neither a begin nor an end token, with which lm-eval begins texts"
            )

    @property
    def eot_token_id(self) -> int | None:
        """The id that ends a text."""
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """The id that is the context of a text without one."""
        return self._scorer.model.prefix_id

    @property
    def max_length(self) -> int:
        """Tokens that the model reads."""
        return self._scorer.model.max_length

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Returns the ids of a text, by default after what the tokenizer puts before a text, such as a begin token."""
        if add_special_tokens is None:
            add_special_tokens = not string.startswith(self.tokenizer.decode([self.prefix_token_id]))
        return self.tokenizer(string, add_special_tokens=add_special_tokens)["input_ids"]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Returns the log-likelihood of each continuation, and whether greedy decoding gives it."""
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm or not shows_bars())

    def _loglikelihood_tokens(self, requests: Sequence[TokenRequest], **_: Any) -> list[tuple[float, bool]]:
        for key, _, continuation in requests:
            if not continuation or len(continuation) > self.max_length:
                raise UsageError(
                    f"--tasks: a continuation has {len(continuation)} tokens; the model takes 1 to "
                    f"{self.max_length}: {key!r:.160}"
                )
        rows = [
            causal_row(context, continuation, max_length=self.max_length)
            for _, context, continuation in requests
        ]
        scores = self._scorer.scores(rows)
        return list(zip(scores.log_likelihood.tolist(), scores.is_greedy.tolist(), strict=True))

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Returns the log-likelihood of whole texts, each token of which is predicted once."""
        windows = [
            [
                (string, *make_disjoint_window(window))
                for window in get_rolling_token_windows(
                    token_list=self.tok_encode(string),
                    prefix_token=self.prefix_token_id,
                    max_seq_len=self.max_length,
                    context_len=1,
                )
            ]
            for (string,) in (request.args for request in requests)
        ]
        scores = iter(self._loglikelihood_tokens(list(itertools.chain.from_iterable(windows))))
        return [sum(next(scores)[0] for _ in each) for each in windows]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Not supported: `load_tasks` refuses tasks that need it."""
        raise NotImplementedError
