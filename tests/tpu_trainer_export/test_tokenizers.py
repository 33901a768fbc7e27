"""A dataset's tokenizer gives the ids of its tokenizer.json in transformers 5."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tokenizers import Tokenizer

transformers = pytest.importorskip("transformers", minversion="5")

ROOT = Path(__file__).parents[2]
TEXTS = ["The cat, in THE Hat", "``naive'' Books", "naïve Übung ﬁ 1984"]
ROLES = ("pad", "mask", "bos", "eos", "cls", "sep", "unk")


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs write_tokenizers.py in the pipeline's environment; returns its folder."""
    folder = tmp_path_factory.mktemp("tokenizers")
    python = os.environ.get("PIPELINE_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
    script = Path(__file__).with_name("write_tokenizers.py")
    subprocess.run([python, script, folder], check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    return folder


def test_a_datasets_tokenizer_gives_the_ids_of_its_json(tokenizers: Path, subtests: pytest.Subtests) -> None:
    folders = [path.parent for path in sorted(tokenizers.glob("*/tokenizer.json"))]
    assert len(folders) > 10
    for folder in folders:
        with subtests.test(folder.name):
            core = Tokenizer.from_file(str(folder / "tokenizer.json"))
            config = json.loads((folder / "tokenizer_config.json").read_text())
            found = transformers.AutoTokenizer.from_pretrained(folder)
            assert found(TEXTS)["input_ids"] == [core.encode(text).ids for text in TEXTS]
            roles = {name: getattr(found, f"{name}_token") for name in ROLES}
            assert roles == {name: config.get(f"{name}_token") for name in ROLES}
            assert len(found) == core.get_vocab_size()
