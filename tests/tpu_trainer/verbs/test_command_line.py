"""Options, YAML and their errors."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

import tpu_trainer
from tpu_trainer.config import FitConfig
from tpu_trainer.config.files import dump_fit_config, load_fit_config
from tpu_trainer.support.errors import UsageError
from tpu_trainer.verbs import options_page
from tpu_trainer.verbs.command_line import VERBS, parse

CONFIGS = sorted(path.stem for path in (Path(tpu_trainer.__file__).parent / "configs").iterdir())
NEEDED = ["fit", "--output_dir", "RUN", "--data.train", "TRAIN"]


def test_yaml_and_command_line_set_the_same_options(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "seed: 3\noptimizer: {learning_rate: 0.5, clip_norm: null}\nmodel: {type: bert, config: {hidden_size: 8}}\n"
    )
    verb, config = parse(
        [*NEEDED, "--config", str(tmp_path / "config.yaml"), "--optimizer.learning_rate", "1e-3",
         "--model.config.num_hidden_layers", "2"]
    )  # fmt: skip
    assert verb == "fit"
    assert (config.seed, config.optimizer.learning_rate, config.optimizer.clip_norm) == (3, 1e-3, None)
    assert (config.model.type, config.model.config) == ("bert", {"hidden_size": 8, "num_hidden_layers": 2})
    assert (config.data.train, config.output_dir) == ("TRAIN", "RUN")


def test_a_dumped_config_loads_as_an_equal_one(tmp_path: Path) -> None:
    _, config = parse(
        [
            *(*NEEDED, "--model.config.hidden_size", "8", "--optimizer.epsilon", "1e-9"),
            *("--strategy", "pjrt", "--mesh.fsdp", "zero", "--mesh.rules", "{wte: [null, model]}"),
        ]
    )
    assert (config.mesh.fsdp, config.mesh.rules) == ("zero", {"wte": [None, "model"]})
    (tmp_path / "config.yaml").write_text(dump_fit_config(config))
    assert load_fit_config(str(tmp_path / "config.yaml")) == config
    # Earlier runs have the defaults of removed options such as `--tpu.name`.
    removed_options = "tpu:\n  name: local\n  zone: null\n  project: null\n  connect_minutes: 10.0\n"
    (tmp_path / "config.yaml").write_text(dump_fit_config(config).replace("tpu:\n", removed_options))
    assert load_fit_config(str(tmp_path / "config.yaml")) == config
    assert parse(["fit", "--config", str(tmp_path / "config.yaml")])[1] == config
    (tmp_path / "config.yaml").write_text("tpu: {name: elsewhere}\n")
    with pytest.raises(UsageError, match=r"no option --tpu\.name: run on the TPU VM itself"):
        load_fit_config(str(tmp_path / "config.yaml"))
    for text, message in (("seed: [", ""), ("seed: 1\nseed: 2", ".*line 2: 'seed' is already set in line 1")):
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(UsageError, match=f"config.yaml: not a configuration of `fit`{message}"):
            load_fit_config(str(tmp_path / "config.yaml"))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_packaged_config_is_valid_and_has_a_bare_name(name: str) -> None:
    _, config = parse([*NEEDED, "--config", name])
    assert isinstance(config, FitConfig) and config.model.config


def test_a_file_comes_before_a_packaged_config_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny-clm").mkdir()  # such as the output of a run
    assert parse([*NEEDED, "--config", "tiny-clm"])[1].train.steps == 1000
    Path("tiny-clm").rmdir()
    Path("tiny-clm").write_text("train: {steps: 7}")
    assert parse([*NEEDED, "--config", "tiny-clm"])[1].train.steps == 7


def test_an_unknown_name_of_a_config_names_the_packaged_ones() -> None:
    with pytest.raises(
        UsageError, match=f"--config tiny-lcm: .*: {', '.join(CONFIGS)}; did you mean tiny-clm"
    ):
        parse([*NEEDED, "--config", "tiny-lcm"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--train.steps", "0"], "--train.steps is 0: must be at least 1"),
        (
            ["--train.steps", "3000000000"],
            r"--train.steps is 3000000000: must be at least 1 and below 2\*\*31",
        ),
        (
            ["--optimizer.learning_rate", ".nan"],
            "--optimizer.learning_rate is nan: must be positive and finite",
        ),
        (["--mlm.probability", "1.5"], "--mlm.probability is 1.5: must be between 0 and 1"),
        (["--optimizer.beta2", "1"], r"--optimizer.beta2 is 1.0: must be in \[0, 1\)"),
        (["--schedule.warmup_steps", "10", "--train.steps", "10"], "must be less than --train.steps, 10"),
        (
            ["--schedule.name", "wsd", "--schedule.warmup_share", "0.5", "--schedule.decay_share", "0.6"],
            "--schedule.decay_share is 0.6: the decay does not fit into the 5000 steps after the warm-up",
        ),
        (
            ["--train.batch_ramp", "8"],
            "--train.batch_ramp is 8: .* there is only one; set --train.accumulation",
        ),
        (["--train.z_loss", "-1"], "--train.z_loss is -1.0: must not be negative"),
        (["--seed", "-1"], "--seed is -1"),
        (["--data.window_shards", "0"], "--data.window_shards is 0"),
        (["--mesh.fsdp", "zero"], "--strategy is 'auto': only pjrt has a mesh"),
        (["--strategy", "pjrt", "--mesh.model", "0"], "--mesh.model is 0: must be at least 1"),
        (["--strategy", "pjrt", "--mesh.rules", "{'(': [null]}"], "is not a regular expression"),
        (["--strategy", "pjrt", "--mesh.rules", "{wte: [data, data]}"], "only one dimension"),
    ],
)
def test_invalid_values_are_rejected(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse([*NEEDED, *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "verb"),
        (["fly"], "fly"),
        (["fit"], "output_dir"),
        ([*NEEDED, "--optimizer.lr", "1"], "optimizer.lr"),
        ([*NEEDED, "--train.steps", "many"], "many"),
        ([*NEEDED, "--strategy", "quantum"], "quantum"),
        ([*NEEDED, "--mesh.fsdp", "two"], "two"),
        ([*NEEDED, "--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_invalid_command_lines_exit_with_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_an_unknown_key_of_a_yaml_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text("optimizer: {learning_rite: 1}\n")
    with pytest.raises(SystemExit):
        parse([*NEEDED, "--config", str(tmp_path / "config.yaml")])
    assert "learning_rite" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\ntrain:\n  steps: 2\n  steps: 3\n", "line 4: 'steps' is already set in line 3"),
        ("data: {train: {a: 1, a: 2}}\n", "'a' is already set in line 1"),
        ("train: {step: 3}\n", "no option --train.step; did you mean --train.steps?"),
        ("trian: {steps: 3}\n", "no option --trian.steps; did you mean --train.steps?"),
        ("train: {steps: 1e3}\n", "--train.steps is '1000.0': must be a whole number; write 1000"),
        ("train: {steps: 1e12}\n", "write 1000000000000"),
        ("optimizer: {learning_rate: nan}\n", "--optimizer.learning_rate is 'nan': must be a finite number"),
        ("optimizer: {clip_norm: no limit}\n", "is 'no limit': must be a finite number or null"),
        ("schedule: {name: linaer}\n", "constant, inverse_sqrt or wsd; did you mean linear?"),
        ("mesh: {fsdp: two}\n", "--mesh.fsdp is 'two': must be true or false, zero or keep"),
        ("data: {train: [1, 2]}\n", "--data.train is '[1, 2]': must be text, a mapping or a list"),
        ("train: 3\n", "--train is 3: must be a mapping"),
        ("train:\n", "--train is null: must be a mapping"),
        ("train:\n  steps:\n", "--train.steps is null: must have a value; omit it for the default"),
        ("train: {precision: null}\n", "--train.precision is null: must have a value"),
        ("model: {config: null}\n", "--model.config is null: must have a value"),
        ("train: {steps: 10:15}\n", "--train.steps is '10:15': must be a whole number"),
        ("seed: !!int x\n", "line 1: 'x' has the tag 'tag:yaml.org,2002:int'; remove it"),
        ("model: &a\n  config: *a\n", "recursive"),
        ("- 3\n", "not a mapping of options"),
        ("train: {\n", "config.yaml: "),
    ],
)
def test_wrong_yaml_is_explained(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(SystemExit):
        parse([*NEEDED, "--config", str(tmp_path / "config.yaml")])
    assert message in capsys.readouterr().err


def test_files_that_cannot_be_read_as_yaml_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for content, message in (
        (b"model: {type: caf\xe9}", "not UTF-8 text"),
        (b"a: " + 3000 * b"[", "recursion"),
    ):
        (tmp_path / "config.yaml").write_bytes(content)
        with pytest.raises(SystemExit):
            parse([*NEEDED, "--config", str(tmp_path / "config.yaml")])
        assert message in capsys.readouterr().err


def test_numbers_in_yaml_are_decimal(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "# 1e-4 is text for PyYAML, 010 is 8, and 10:15 is 615\n"
        "train: {steps: 010}\noptimizer: {learning_rate: 1e-4, epsilon: .5, beta1: 0.}\n"
        "profile: {steps: 10:15}\nmodel: {config: {layer_norm_eps: 1e-5, n: -1_0, x: +1.5E+3, date: 2024-01-02}}\n"
    )
    _, config = parse([*NEEDED, "--config", str(tmp_path / "config.yaml")])
    assert (config.train.steps, config.profile.steps) == (10, "10:15")
    assert (config.optimizer.learning_rate, config.optimizer.epsilon, config.optimizer.beta1) == (
        1e-4,
        0.5,
        0,
    )
    assert config.model.config == {"layer_norm_eps": 1e-5, "n": -10, "x": 1500.0, "date": "2024-01-02"}


def test_merged_keys_can_be_overridden(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "model:\n  config: &base {x: 1, y: &first {z: 1}, v: &second {<<: *first, z: 2}, w: {<<: *second, z: 3}}\n"
    )
    _, config = parse([*NEEDED, "--config", str(tmp_path / "config.yaml")])
    assert config.model.config == {"x": 1, "y": {"z": 1}, "v": {"z": 2}, "w": {"z": 3}}


def test_an_empty_configuration_is_one_of_defaults(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("# nothing\n")
    assert parse([*NEEDED, "--config", str(tmp_path / "config.yaml")]) == parse(NEEDED)


def test_the_help_of_a_verb_begins_with_commands_to_copy(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["fit", "--help"])
    text = capsys.readouterr().out
    assert (
        text.index("Examples:\n    tokenmill-trainer fit --config")
        < text.index("--output_dir OUTPUT_DIR")
        < 1500
    )
    topics = ["The training data:", "The model:", "The training loop:", "The TPU of this machine:"]
    places = [text.index(topic) for topic in topics]
    assert places == sorted(places)
    assert "type: " not in text  # of Python, which is no help


@pytest.mark.parametrize(
    "verb", ["plan", "fit", "evaluate", "compare", "export", "fill-mask", "generate", "compile-check"]
)
def test_the_examples_in_the_help_are_valid_commands(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, fit_config = parse([*NEEDED, "--config", CONFIGS[0]])
    (tmp_path / "config.yaml").write_text(dump_fit_config(fit_config))
    lines = re.findall(r"^ +tokenmill-trainer (.+)$", inspect.cleandoc(VERBS[verb].__doc__), re.MULTILINE)
    assert len(lines) >= 2
    for line in lines:
        words = shlex.split(line.partition(" < ")[0])
        files = {"model.yaml", "run/config.yaml"}
        parsed, _ = parse([str(tmp_path / "config.yaml") if word in files else word for word in words])
        assert parsed == verb


def test_the_reference_page_is_up_to_date() -> None:
    path = Path(__file__).parents[3] / "docs" / "trainer-options.md"
    assert path.read_text(encoding="utf-8") == options_page.page(), "run: make docs-options"


def test_the_reference_page_has_every_option_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    for verb, section in zip(
        VERBS, re.split(r"^## .*$", options_page.page(), flags=re.MULTILINE)[1:], strict=True
    ):
        with pytest.raises(SystemExit):
            parse([verb, "--help"])
        help_options = set(re.findall(r"^  (--[\w.]+)", capsys.readouterr().out, re.MULTILINE))
        help_options -= {"--config", "--print_config"}
        page_options = set(re.findall(r"^\| `(--[\w.]+)`", section, re.MULTILINE))
        if "options of [fit](#fit)" in section:
            assert page_options < help_options and len(page_options) > 5
        else:
            assert page_options == help_options


def test_every_option_has_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("fit", "evaluate", "export", "fill-mask"):
        with pytest.raises(SystemExit) as stop:
            parse([verb, "--help"])
        assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "Share of a row's tokens to predict" in " ".join(text.split())


def test_the_installed_command_lists_every_verb_in_a_line() -> None:
    command = str(Path(sys.executable).with_name("tokenmill-trainer"))
    without_verb, with_help = (
        subprocess.run([command, *words], capture_output=True, text=True, check=False)
        for words in ([], ["--help"])
    )
    assert (without_verb.returncode, with_help.returncode) == (2, 0)
    assert without_verb.stderr == with_help.stdout
    assert with_help.stdout.startswith("usage: tokenmill-trainer VERB")
    lines = [line.split() for line in with_help.stdout.splitlines() if line.startswith("  ")]
    assert [line[0] for line in lines] == [*VERBS, "completion"]
    assert all(len(line) > 3 for line in lines)


@pytest.mark.parametrize("words", [["--help"], ["fit", "--help"], ["launch", "--help"]])
def test_help_imports_no_heavy_library(words: list[str]) -> None:
    code = (
        "import atexit, sys; from tpu_trainer.__main__ import main; "
        f"sys.argv = ['tpu_trainer', *{words!r}]; "
        "atexit.register(lambda: print({'tensorflow', 'transformers', 'jax'} & set(sys.modules))); main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "usage: tpu_trainer" in result.stdout
    assert result.stdout.endswith("set()\n")


def test_invalid_options_are_rejected_before_tensorflow_is_imported(tmp_path: Path) -> None:
    missing_folder = str(tmp_path / "nowhere")
    commands = [
        ["fit", "--output_dir", "RUN", "--data.train", missing_folder],
        ["evaluate", "--run", missing_folder],
        ["export", "--run", missing_folder, "--output", "MODEL"],
        ["generate", "--model", missing_folder, "--text", "x"],
        ["fill-mask", "--model", missing_folder, "--text", "x"],
    ]
    code = (
        "import sys; from tpu_trainer.__main__ import main\n"
        f"for command in {commands!r}:\n"
        "    sys.argv = ['tpu_trainer', *command]; assert main() == 2; assert 'tensorflow' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "nowhere: no such folder" in result.stderr
    assert result.stderr.count("nowhere: no config") == 4


def test_models_that_cannot_be_built_are_rejected_before_tensorflow_is_imported(
    dataset: Path, tmp_path: Path
) -> None:
    fit = ["fit", "--data.train", str(dataset / "train"), "--output_dir", str(tmp_path / "run")]
    cloud = [
        "--cloud.project",
        "p",
        "--cloud.zone",
        "europe-west4-b",
        "--cloud.image",
        f"r/i@sha256:{'0' * 64}",
    ]
    launch = [
        "launch",
        "--data.train",
        "gs://b/train",
        "--output_dir",
        "gs://b/run",
        *cloud,
        "--cloud.dry_run",
        "true",
    ]
    commands = [
        [*fit, "--model.type", "rosberta"],
        [*fit, "--model.config.hiden_size", "8"],
        [*fit, "--model.config.hidden_size", "many"],
        [*fit, "--model.config.hidden_size", "10", "--model.config.num_attention_heads", "3"],
        [*fit, "--model.config.max_position_embeddings", "4"],
        ["compile-check", "--model.type", "rosberta"],
        [*launch, "--model.type", "rosberta"],
    ]
    code = (
        "import sys; from tpu_trainer.__main__ import main\n"
        f"for command in {commands!r}:\n"
        "    sys.argv = ['tpu_trainer', *command]; assert main() == 2; assert 'tensorflow' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert (
        result.stderr.count("--model.type is 'rosberta': not a supported masked-LM model; must be one of")
        == 3
    )
    assert result.stderr.count("xlm-roberta; did you mean roberta?\n") == 3
    assert "--model.config.hiden_size is 8: configurations of this type have no such value; did you mean" in (
        result.stderr
    )
    assert "'hidden_size' expected int, got str (value: 'many')" in result.stderr
    assert "3 heads do not divide the hidden size of 10" in result.stderr
    assert "--model.config.max_position_embeddings is 4: rows of " in result.stderr
    assert not (tmp_path / "run").exists()


def test_misspelt_verbs_and_options_are_named_with_those_that_were_meant(
    run_verb: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in (
        (["fitt"], "error: 'fitt' is not a verb; did you mean fit?"),
        (["zzz"], "error: 'zzz' is not a verb"),
        (
            ["fit", "--train.step", "3"],
            "error: unrecognized arguments: --train.step 3; did you mean --train.steps?",
        ),
    ):
        with pytest.raises(SystemExit) as stop:
            run_verb(*arguments)
        assert stop.value.code == 2
        assert capsys.readouterr().err.endswith(f"{message}\n")


def test_the_version_is_that_of_the_package(
    run_verb: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb("--version") == 0
    assert capsys.readouterr().out == f"tpu_trainer {version('tokenmill-trainer')}\n"


def test_ctrl_c_shows_no_traceback(
    run_verb: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tpu_trainer.verbs.generate.main", raise_interrupt)
    assert run_verb("generate", "--model", "model", "--text", "x") == 130
    assert capsys.readouterr().err == "tpu_trainer: interrupted\n"


def test_a_reader_that_closes_the_pipe_causes_no_traceback() -> None:
    code = (
        "import sys; from tpu_trainer import __main__; from tpu_trainer.verbs import generate; "
        "generate.main = lambda _: sys.stdin.read() + "
        "print('text', flush=True); sys.argv = ['tpu_trainer', 'generate', '--model', 'm']; sys.exit(__main__.main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    _, error = process.communicate()
    assert (process.returncode, error) == (1, b"")


def test_a_verb_does_not_depend_on_its_streams() -> None:
    code = (
        "import sys; from tpu_trainer import __main__\nfrom tpu_trainer.verbs import generate\n"
        "from tokenmill_reader.console.streams import json_line, print_data\n"
        "generate.main = lambda _: [print_data(json_line('é\\ud800')), print('é\\ud800\\x1b', file=sys.stderr)]; "
        "sys.argv = ['tpu_trainer', 'generate', '--model', 'm']; sys.exit(__main__.main())"
    )
    for redirections, encoding, expected in (
        ("", "ascii", (b'"\\u00e9\\ud800"\n', b"\\xe9\\ud800\\x1b\n")),
        ("", "utf-8", (b'"\xc3\xa9\\ud800"\n', b"\xc3\xa9\\ud800\\x1b\n")),
        ("<&- >&- 2>&-", "utf-8", (b"", b"")),
        (
            ">/dev/full",
            "utf-8",
            (b"", b"tpu_trainer: error: [Errno 28] No space left on device: 'standard output'\n"),
        ),
    ):
        command = ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-c", code]
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        process = subprocess.run(command, capture_output=True, check=False, env=environment)
        assert (process.returncode, process.stdout, process.stderr) == (">/dev" in redirections, *expected)


def test_errors_of_a_verb_are_one_line_and_status_2(
    run_verb: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in (
        (["fit", "--output_dir", "", "--data.train", tmp_path], "--output_dir is '': name a folder"),
        (["evaluate", "--run", tmp_path], "no config.yaml there"),
        (["export", "--run", tmp_path, "--output", tmp_path / "new"], "no config.yaml there"),
        (["fill-mask", "--model", tmp_path, "--text", "x"], "no config.json there"),
    ):
        assert run_verb(*arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("tpu_trainer: error: ")
        assert message in error
        assert error.count("\n") == 1


def test_the_trainer_does_not_import_the_pipeline() -> None:
    for path in Path(tpu_trainer.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & {"beam_pipeline", "apache_beam"}, path


def test_bash_completes_verbs_options_and_values(
    run_verb: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from tests.completions import completed_by_bash

    assert run_verb("completion", "bash") == 0
    script = tmp_path / "trainer.bash"
    script.write_text(capsys.readouterr().out)
    for words, expected in (
        (["fi"], {"fit", "fill-mask"}),
        (["fit", "--objec"], {"--objective"}),
        (["fit", "--objective", ""], {"mlm", "clm"}),
    ):
        assert completed_by_bash(script, "tokenmill-trainer", *words, folder=tmp_path) == expected
    assert run_verb("completion", "csh") == 2
    assert "completion {bash,zsh,fish}" in capsys.readouterr().err
