"""The peer: datatrove's DocumentTokenizer. It writes the documents' tokens: no rows, no tf.Examples."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers.base import BaseDiskReader
from datatrove.pipeline.tokens import DocumentTokenizer


class LineReader(BaseDiskReader):
    """A document per line."""

    name = "lines"

    def read_file(self, filepath: str):
        with self.data_folder.open(filepath, "r", encoding="utf-8") as file:
            for number, line in enumerate(file):
                document = self.get_document_from_dict({"text": line.rstrip("\n")}, filepath, number)
                if document:
                    yield document


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    # It reads in parallel by file, so the text is cut into one file a process.
    with tempfile.TemporaryDirectory() as folder:
        data = Path(args.input).read_bytes()
        first = 0
        for number in range(args.processes):
            end = (
                len(data)
                if number == args.processes - 1
                else data.find(b"\n", len(data) * (number + 1) // args.processes) + 1
            )
            Path(folder, f"{number}.txt").write_bytes(data[first:end])
            first = end
        del data
        LocalPipelineExecutor(
            pipeline=[
                LineReader(folder),
                DocumentTokenizer(
                    output_folder=args.output,
                    tokenizer_name_or_path=str(Path(args.tokenizer, "tokenizer.json")),
                    eos_token=None,
                    shuffle_documents=False,
                ),
            ],
            tasks=args.processes,
            workers=args.processes,
            logging_dir=str(Path(folder, "logs")),
        ).run()


if __name__ == "__main__":
    main()
