"""Compares the preparation of conversations with that of TRL and llm-foundry, as whole processes, in one run.

    .venv/bin/python benchmarks/conversations.py --text text.txt --trl PYTHON --llm_foundry PYTHON

PYTHON is one of an environment that has the peer. The conversations are made of the text's lines: one to five turns of
20 to 1,800 characters. All use the same tokenizer and template, which marks what is generated. Prints a Markdown table
of the CPU seconds of whole processes, start-up included.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path

from measure import Measured, measure, table

PEERS = Path(__file__).with_name("peers")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
MAX_LENGTH = 2048


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", required=True, help="a text file, whose long lines are the messages")
    parser.add_argument("--conversations", type=int, default=20_000)
    parser.add_argument("--trl", help="Python of an environment with TRL, torch and datasets")
    parser.add_argument("--llm_foundry", help="Python of an environment with llm-foundry")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(args, Path(folder))


def compare(args: argparse.Namespace, folder: Path) -> None:
    few, many = folder / "few.jsonl", folder / "many.jsonl"
    lines = [line for line in Path(args.text).read_text(encoding="utf-8").splitlines() if len(line) > 100]
    write_conversations(few, lines, 50)
    write_conversations(many, lines, args.conversations)
    tokenizer = make_tokenizer(folder, args.text, few)
    options = ["--tokenizer", str(tokenizer), "--max_length", str(MAX_LENGTH)]
    own = [sys.executable, "-m", "beam_pipeline", "prepare", "--content", "conversation", *options]
    commands = {"`prepare`": own}
    for name, python, script in (
        ("TRL", args.trl, "trl_sft.py"),
        ("llm-foundry", args.llm_foundry, "llm_foundry_finetuning.py"),
    ):
        if python:
            commands[name] = [python, str(PEERS / script), *options]
        else:
            print(f"{name}: skipped; name its Python")
    for command in commands.values():  # imports from a cold disk would take longer
        run(command, few, folder)
    results = {name: run(command, many, folder) for name, command in commands.items()}
    own_seconds = results["`prepare`"].cpu_seconds
    rows = [
        [
            name,
            f"{found.cpu_seconds:.1f}",
            f"{found.cpu_seconds / own_seconds:.1f}×",
            f"{found.peak_bytes / 1e9:.2f}",
        ]
        for name, found in results.items()
    ]
    print(f"{args.conversations:,} conversations, {many.stat().st_size / 1e6:.0f} MB\n")
    print(table(["program", "CPU s", "÷ ours", "peak GB"], rows))


def write_conversations(path: Path, lines: list[str], count: int) -> None:
    chooser = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            messages = []
            if chooser.random() < 0.5:
                messages.append({"role": "system", "content": "You are a helpful assistant."})
            for _ in range(chooser.randint(1, 5)):
                question = chooser.choice(lines)[: chooser.randint(20, 300)].strip()
                answer = chooser.choice(lines)[: chooser.randint(50, 1500)].strip()
                messages += [
                    {"role": "user", "content": question},
                    {"role": "assistant", "content": answer},
                ]
            file.write(json.dumps({"messages": messages}) + "\n")


def make_tokenizer(folder: Path, text: str, few: Path) -> Path:
    """Trains a tokenizer, and returns a folder in which it has the chat template."""
    program = [sys.executable, "-m", "beam_pipeline"]
    plain, template = folder / "plain", folder / "template.jinja"
    template.write_text(TEMPLATE)
    tokens = ["--special_tokens", "<|im_start|>", "<|im_end|>", "--vocab_size", "32000"]
    measure([*program, "train-tokenizer", "--input", text, *tokens, "--output", str(plain)], folder / "log")
    options = ["--content", "conversation", "--tokenizer", str(plain), "--chat_template", str(template)]
    out = ["--max_length", str(MAX_LENGTH), "--output", str(folder / "made")]
    measure([*program, "prepare", "--input", str(few), *options, *out], folder / "log")
    return folder / "made" / "tokenizer"


def run(command: list[str], source: Path, folder: Path) -> Measured:
    output = folder / "out"
    quiet = {"TOKENIZERS_PARALLELISM": "false"}
    measured = measure([*command, "--input", str(source), "--output", str(output)], folder / "log", quiet)
    shutil.rmtree(output)
    return measured


if __name__ == "__main__":
    main()
