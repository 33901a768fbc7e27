"""The peer: TRL's preparation for SFTTrainer. It applies the chat template, tokenizes, masks and packs into Arrow."""

from __future__ import annotations

import argparse
from pathlib import Path

from datasets import load_dataset
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--max_length", type=int, required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            pad_token_id=None,
        )
    )
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            output_dir=args.output,
            max_length=args.max_length,
            packing=True,
            assistant_only_loss=True,
            dataset_num_proc=args.processes,
            use_cpu=True,
            report_to="none",
        ),
        train_dataset=load_dataset(
            "json", data_files=args.input, split="train", cache_dir=Path(args.output, "cache")
        ),
        processing_class=tokenizer,
    )
    trainer.train_dataset.save_to_disk(Path(args.output, "dataset"))


if __name__ == "__main__":
    main()
