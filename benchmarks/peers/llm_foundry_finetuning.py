"""The peer: llm-foundry's conversion of chats to MDS. It applies the template and tokenizes, and packs later."""

from __future__ import annotations

import argparse
import os

from llmfoundry.command_utils.data_prep.convert_finetuning_dataset import convert_finetuning_dataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--max_length", type=int, required=True)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    os.environ["HF_DATASETS_CACHE"] = os.path.join(args.output, "cache")  # noqa: PTH118
    convert_finetuning_dataset(
        dataset="json",
        data_subset=None,
        splits=["train"],
        preprocessor=None,
        data_files=[args.input],
        skip_preprocessing=True,
        out_root=os.path.join(args.output, "mds"),  # noqa: PTH118
        local=None,
        compression=None,
        num_workers=2,
        tokenizer=args.tokenizer,
        tokenizer_kwargs={},
        max_seq_len=args.max_length,
        target_prompts="none",
        target_responses="all",
        encoder_decoder=False,
    )


if __name__ == "__main__":
    main()
