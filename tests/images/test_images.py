"""The images, built from their Dockerfiles, run the programs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.images.buildah import DOCKERFILES, ROOT, Image, build

CORPUS = ROOT / "README.md"
SECRETS = re.compile(r"(^|/)(\.netrc|\.git|id_rsa|credentials.*\.json|\.env|\.pypirc|pip\.conf)(/|$)")
CACHES = re.compile(r"(^|/)(root/\.cache|tmp/.+|var/lib/apt/lists/.+|\.pytest_cache|\.ruff_cache)(/|$)")
SMALL = [
    *("--objective", "clm", "--model.type", "gpt2", "--model.config.n_embd", "32", "--model.config.n_layer", "1"),
    *("--model.config.n_head", "2", "--train.steps", "6", "--train.batch_size", "4", "--schedule.warmup_steps", "1"),
]  # fmt: skip


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the host for the images' users, who are not root."""
    folder = tmp_path_factory.mktemp("shared")
    shutil.copy(CORPUS, folder / "corpus.txt")
    for path in (folder, *folder.parents):
        if path != Path("/") and path.owner() == "root" and path.is_relative_to(Path("/tmp")):
            path.chmod(0o777 if path == folder else 0o755 | path.stat().st_mode)
    return folder


def done(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return result.stdout


def commands(folder: Path, output: str) -> list[list[str]]:
    """Returns the arguments of the commands that make a tokenizer and a dataset of the folder's corpus."""
    source = ["--input", f"{folder}/corpus.txt"]
    tokenizer, output_folder = f"{folder}/{output}-tokenizer", f"{folder}/{output}"
    rows = ["--splits", "train=0.8,validation=0.2", "--max_length", "32", "--append_eos"]
    return [
        ["train-tokenizer", *source, "--vocab_size", "400", "--output", tokenizer],
        ["prepare", *source, "--tokenizer", tokenizer, "--output", output_folder, *rows],
    ]


@pytest.fixture(scope="session")
def dataset(pipeline: Image, shared_folder: Path) -> Path:
    """A dataset that the pipeline's image has made, as docs/running-on-google-cloud.md runs it outside Dataflow."""
    for arguments in commands(shared_folder, "in-image"):
        done(
            pipeline.run(
                "-m", "beam_pipeline", *arguments, folder=shared_folder, entrypoint="python", user="1000"
            )
        )
    return shared_folder / "in-image"


def test_a_dataset_made_in_the_image_has_the_bytes_of_one_made_here(
    dataset: Path, shared_folder: Path
) -> None:
    for arguments in commands(shared_folder, "here"):
        done(
            subprocess.run(
                [sys.executable, "-m", "beam_pipeline", *arguments],
                capture_output=True,
                text=True,
                check=False,
            )
        )
    expected = {path.name: path.read_bytes() for path in (shared_folder / "here").rglob("*.tfrecord")}
    assert len(expected) >= 2
    assert {path.name: path.read_bytes() for path in dataset.rglob("*.tfrecord")} == expected


def test_a_model_is_trained_evaluated_and_exported_in_the_cpu_image(
    trainer: Image, dataset: Path, shared_folder: Path
) -> None:
    run, model = shared_folder / "run", shared_folder / "model"
    data = ["--data.train", dataset / "train", "--data.validation", dataset / "validation"]
    done(trainer.run("fit", *data, "--output_dir", run, *SMALL, folder=shared_folder))
    assert json.loads((run / "summary.json").read_text())["steps"] == 6
    assert json.loads(done(trainer.run("evaluate", "--run", run, folder=shared_folder)))["step"] == 6
    done(trainer.run("export", "--run", run, "--output", model, folder=shared_folder))
    assert (model / "model.safetensors").stat().st_uid == 10001
    answer = done(trainer.run("generate", "--model", model, "--text", "the", "--json", folder=shared_folder))
    assert json.loads(answer)


def test_the_tpu_image_imports_all_it_needs(tpu_trainer: Image, shared_folder: Path) -> None:
    code = "import libtpu, tensorflow, tpu_trainer.verbs.fit; print(tensorflow.__version__)"
    version = done(
        tpu_trainer.run(
            "-c",
            f"import os; os.environ['TPU_LOAD_LIBRARY'] = '0'; {code}",
            folder=shared_folder,
            entrypoint="python",
        )
    )
    assert version.startswith("2.")


def test_the_pjrt_image_trains_on_the_cpu_with_jax(
    pjrt_trainer: Image, dataset: Path, shared_folder: Path
) -> None:
    run = shared_folder / "pjrt-run"
    data = ["--data.train", dataset / "train", "--output_dir", run, "--strategy", "pjrt"]
    done(
        pjrt_trainer.run(
            "JAX_PLATFORMS=cpu",
            *("python", "-m", "tpu_trainer", "fit", *data, *SMALL),
            folder=shared_folder,
            entrypoint="env",
        )
    )
    assert json.loads((run / "summary.json").read_text())["steps"] == 6


@pytest.mark.parametrize(
    ("name", "user", "most_gigabytes"),
    [("pipeline", "", 3.0), ("trainer", "10001", 2.6), ("tpu_trainer", "", 2.6), ("pjrt_trainer", "", 3.9)],
)
def test_images_hold_neither_secrets_nor_caches(
    request: pytest.FixtureRequest, name: str, user: str, most_gigabytes: float
) -> None:
    image: Image = request.getfixturevalue(name)
    files = image.files()
    gigabytes = sum(files.values()) / 1e9
    print(f"{name}: {gigabytes:.2f} GB")
    assert [path for path in files if SECRETS.search(path) or CACHES.search(path)] == []
    assert not [path for path in files if "/tests/beam_pipeline/" in path or "/tests/tpu_trainer/" in path]
    assert image.inspect()["config"].get("User", "") == user
    assert gigabytes < most_gigabytes


@pytest.mark.parametrize(
    ("fixture", "name", "changed_file"),
    [
        ("pipeline", "pipeline", "beam_pipeline/support/errors.py"),
        ("trainer", "trainer:cpu", "trainer/tpu_trainer/support/errors.py"),
    ],
)
def test_a_change_of_the_source_keeps_the_layer_of_packages(
    request: pytest.FixtureRequest, tmp_path: Path, fixture: str, name: str, changed_file: str
) -> None:
    before: Image = request.getfixturevalue(fixture)
    tracked_files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for path in filter(None, tracked_files.split("\0")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, tmp_path / path)
    with (tmp_path / changed_file).open("a") as file:
        file.write("# changed\n")
    after = build(DOCKERFILES[name], f"localhost/{fixture}:changed", context=tmp_path)
    layers = [image.inspect()["rootfs"]["diff_ids"] for image in (before, after)]
    shared_layers = [id for id in layers[0] if id in layers[1]]
    assert 1 < len(shared_layers) < len(layers[0])
    assert "Using cache" in after.log
    assert "Downloading" not in after.log
    assert "Successfully installed" not in after.log.replace("Successfully installed tokenmill", "")
