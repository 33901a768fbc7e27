"""What transformers' tokenizer classes add to a tokenizer: special tokens, and which inputs their models have.

These are the defaults of the fast classes of transformers 4.57. They are a table here, because ids and roles must not
depend on the installed release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PLAIN_CLASS = "PreTrainedTokenizerFast"
BACKEND_CLASS = "TokenizersBackend"  # the plain class's name in transformers 5
PLAIN_CLASSES = (PLAIN_CLASS, "PreTrainedTokenizer", BACKEND_CLASS)


@dataclass(frozen=True)
class TokenizerClass:
    """A class of transformers, by its name without `Tokenizer` and `Fast`."""

    name: str
    roles: Mapping[str, str] = field(default_factory=dict)
    """Role (`pad`, `mask`, …) → token, unless the config names another one."""
    is_known: bool = False
    is_plain: bool = False

    @property
    def has_token_types(self) -> bool:
        """Whether its models have the input `token_type_ids`."""
        return self.name in _WITH_TOKEN_TYPES

    @property
    def has_template_options(self) -> bool:
        """Whether the options `add_bos_token` and `add_eos_token` determine the tokens around a text."""
        return self.name in ("Llama", "CodeLlama", "Gemma", "Cohere", "GPTNeoX")

    @property
    def mask_absorbs_space(self) -> bool:
        """Whether the default mask token absorbs the space before it."""
        return self.name in (*_ROBERTA, *_ALBERT)


_ALBERT = ("Albert", "RemBert")
_BERT = ("Bert", "ConvBert", "DistilBert", "Electra", "LayoutLM", "MobileBert", "RoFormer", "SqueezeBert")
_ROBERTA = ("Roberta", "Bart", "Barthez", "Camembert", "LED", "Longformer", "MBart", "Mvp", "XLMRoberta")
_WITH_TOKEN_TYPES = {*_ALBERT, *_BERT, "Deberta", "DebertaV2", "FNet", "XLNet"} - {"DistilBert"}

_END = "<|endoftext|>"
_ROLES: Mapping[tuple[str, ...], Mapping[str, str]] = {
    _ALBERT: {
        **{"bos": "[CLS]", "eos": "[SEP]", "unk": "<unk>", "sep": "[SEP]", "pad": "<pad>", "cls": "[CLS]"},
        "mask": "[MASK]",
    },
    _BERT: {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"},
    _ROBERTA: {
        **{"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>"},
        "mask": "<mask>",
    },
    ("BigBird",): {
        **{"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "[SEP]", "pad": "<pad>", "cls": "[CLS]"},
        "mask": "[MASK]",
    },
    ("Bloom",): {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
    ("CodeGen", "GPT2", "GPTNeoX"): {"bos": _END, "eos": _END, "unk": _END},
    ("CodeLlama", "Llama"): {"bos": "<s>", "eos": "</s>", "unk": "<unk>"},
    ("Cohere",): {"bos": "<BOS_TOKEN>", "eos": "<|END_OF_TURN_TOKEN|>", "unk": "<UNK>"},
    ("Deberta", "DebertaV2"): {
        **{"bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]"},
        "mask": "[MASK]",
    },
    ("FNet",): {"unk": "<unk>", "sep": "[SEP]", "pad": "<pad>", "cls": "[CLS]", "mask": "[MASK]"},
    ("Gemma",): {"bos": "<bos>", "eos": "<eos>", "unk": "<unk>", "pad": "<pad>"},
    ("MPNet",): {
        **{"bos": "<s>", "eos": "</s>", "unk": "[UNK]", "sep": "</s>", "pad": "<pad>", "cls": "<s>"},
        "mask": "<mask>",
    },
    ("MT5", "T5"): {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
    ("Pegasus",): {"eos": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask_2>"},
    ("Qwen2",): {"eos": _END, "unk": _END, "pad": _END},
    ("XLNet",): {
        **{"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "<sep>", "pad": "<pad>", "cls": "<cls>"},
        "mask": "<mask>",
    },
}
KNOWN_CLASSES = {
    name: TokenizerClass(name, roles, is_known=True) for names, roles in _ROLES.items() for name in names
}

# Types of models whose tokenizer's class has another name.
_OF_MODELS = {
    **dict.fromkeys(("gpt_neo", "gptj", "opt"), "GPT2"),
    **dict.fromkeys(("longt5", "umt5"), "T5"),
    **dict.fromkeys(("ernie", "megatron-bert"), "Bert"),
    "nystromformer": "Albert",
}
_BY_LETTERS = {name.lower(): name for name in KNOWN_CLASSES}

# A class that uses `tokenizer.json` as it is.
PLAIN = TokenizerClass(PLAIN_CLASS, is_known=True, is_plain=True)


def find_class(config: Mapping[str, Any], model_config: Mapping[str, Any]) -> TokenizerClass | None:
    """Returns the class of a tokenizer, according to its config, or else to that of its model.

    Args:
        config: The `tokenizer_config.json`.
        model_config: The `config.json`.

    Returns:
        The class, None if neither names one or a type of models.
    """
    name = config.get("tokenizer_class") or model_config.get("tokenizer_class")
    if isinstance(name, str):
        if name in PLAIN_CLASSES:
            return PLAIN
        short = name.removesuffix("Fast").removesuffix("Tokenizer")
        return KNOWN_CLASSES.get(short, TokenizerClass(name))
    model_type = model_config.get("model_type")
    if not isinstance(model_type, str):
        return None
    letters = model_type.lower().replace("-", "").replace("_", "")
    name = _OF_MODELS.get(model_type) or _BY_LETTERS.get(letters)
    return None if name is None else KNOWN_CLASSES[name]
