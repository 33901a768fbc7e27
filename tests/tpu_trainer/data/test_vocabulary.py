"""A tokenizer's folder that cannot be loaded is reported in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpu_trainer.data.vocabulary import load_tokenizer
from tpu_trainer.support.errors import UsageError


@pytest.mark.parametrize(
    ("tokenizer", "config"),
    [
        ('{"version": "1.0"}', "{}"),
        ('{"version": "1.0"}', '{"tokenizer_class": "PreTrainedTokenizerFast"}'),
        ("{", '{"tokenizer_class": "PreTrainedTokenizerFast"}'),
        ("{}", "[]"),
    ],
)
def test_a_damaged_tokenizer_is_no_traceback(tokenizer: str, config: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer)
    (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(UsageError, match="AutoTokenizer cannot load it"):
        load_tokenizer(str(tmp_path))
