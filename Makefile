# make setup   two environments: .venv (the pipeline) and trainer/.venv (the trainer)
# make demo    text → tokenizer → shards → a trained model; INPUT=path uses your own text
# make test    the whole test suite
# make fuzz CASES=1000   seeded faults and hostile input against one oracle (make test runs a few dozen cases)
# make test-export   exported models, loaded and compared in PyTorch and transformers 5 (an environment of its own)
# make test-tpu-check   what needs the TPU compiler: three minutes of a core (an environment of its own)
# make compile-check CONFIG=… TOPOLOGY=v5e:2x4   would this training fit a TPU, and what would it cost? (no TPU needed)
# make kernels   the TPU kernels' bytecode, anew from their source
# make lint    what CI lints
# make docs-options   docs/options.md from the options' declarations
# make lock    refresh both environments' locked dependencies

PYTHON ?= $(shell command -v python3.11 || command -v python3)
UV_VERSION := 0.13.8
INPUT ?=
OUTPUT ?= demo-output
CASES ?= 1000
SEED ?= 0

PIPELINE := .venv/bin/python
TRAINER := trainer/.venv/bin/python
UV := .venv/bin/uv
EXPORT := trainer/.venv-export/bin/python
# On Linux PyPI's torch is a CUDA build of gigabytes; from here it is the CPU's, where the index can be reached.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TPU_CHECK := trainer/.venv-tpu-check/bin/python
CONFIG ?= trainer/configs/tiny-mlm.yaml
TOPOLOGY ?= v5e:2x4
OPTIONS ?=

.PHONY: setup demo test test-pipeline test-trainer fuzz test-export test-tpu-check compile-check kernels docs-options lint lock clean

setup: .venv/.ready trainer/.venv/.ready

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
	  || { echo "tokenmill: the locked environments need Python 3.11; name one with: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIPELINE) -m pip install --quiet uv==$(UV_VERSION)

# A change to a lock or to the metadata makes the environment anew from the lock.
.venv/.ready: $(UV) requirements-dev.lock setup.py
	$(UV) pip install --quiet --python $(PIPELINE) --require-hashes -r requirements-dev.lock
	$(UV) pip install --quiet --python $(PIPELINE) --no-deps -e .
	@touch $@

trainer/.venv/.ready: $(UV) trainer/requirements-dev.lock trainer/pyproject.toml
	$(UV) venv --quiet --allow-existing --python $(PIPELINE) trainer/.venv
	$(UV) pip install --quiet --python $(TRAINER) --require-hashes -r trainer/requirements-dev.lock
	$(UV) pip install --quiet --python $(TRAINER) --no-deps -e trainer
	@touch $@

trainer/.venv-tpu-check/.ready: $(UV) trainer/requirements-tpu-check.lock trainer/pyproject.toml
	$(UV) venv --quiet --allow-existing --python $(PIPELINE) trainer/.venv-tpu-check
	$(UV) pip install --quiet --python $(TPU_CHECK) --require-hashes -r trainer/requirements-tpu-check.lock
	$(UV) pip install --quiet --python $(TPU_CHECK) --no-deps -e trainer
	@touch $@

# OPTIONS holds more of the verb's: OPTIONS="--find-batch-size --output figures.json".
compile-check: trainer/.venv-tpu-check/.ready
	$(TPU_CHECK) -m tpu_trainer compile-check --config $(CONFIG) --topology $(TOPOLOGY) $(OPTIONS)

demo: setup
	$(PIPELINE) -m demo --output $(OUTPUT) $(if $(INPUT),--input $(INPUT))

test: test-pipeline test-trainer

test-pipeline: setup
	$(PIPELINE) -m pytest -n auto --dist loadfile tests/beam_pipeline tests/end_to_end tests/deploy tests/fuzz

test-trainer: setup
	$(TRAINER) -m pytest -n auto --dist loadfile tests/tpu_trainer

# SEED=1 draws other cases; `-m tests.fuzz --seed S --only N` replays one.
fuzz: setup
	$(PIPELINE) -m tests.fuzz --cases $(CASES) --seed $(SEED)

# torch comes by pip, which takes the CPU's build of the locked version where it finds one; the lock names none of CUDA's.
trainer/.venv-export/.ready: $(UV) trainer/requirements-export.lock
	$(PIPELINE) -m venv trainer/.venv-export
	$(EXPORT) -m pip install --quiet --no-deps --extra-index-url $(TORCH_INDEX) $$(grep '^torch==' trainer/requirements-export.lock)
	$(UV) pip install --quiet --python $(EXPORT) -r trainer/requirements-export.lock
	@touch $@

test-export: setup trainer/.venv-export/.ready
	PIPELINE_PYTHON=$(PIPELINE) TRAINER_PYTHON=$(TRAINER) PYTHONPATH=trainer $(EXPORT) -m pytest tests/tpu_trainer_export

test-tpu-check: trainer/.venv-tpu-check/.ready
	$(TPU_CHECK) -m pytest tests/tpu_check

kernels: trainer/.venv-tpu-check/.ready
	JAX_PLATFORMS=cpu $(TPU_CHECK) -m tpu_trainer.tpu_check.kernel_sources trainer/tpu_trainer/network/attention_kernels.zip

docs-options: setup
	$(PIPELINE) -m beam_pipeline.options_page > docs/options.md

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports --no-cache --no-logo
	cd trainer && ../.venv/bin/lint-imports --no-cache --no-logo
	@! grep -rnE --exclude-dir='.venv*' --exclude-dir=.git '^(<{7}|>{7}) ' .  # the marks of a merge that is not done

LOCK := pip compile --quiet --generate-hashes --python-version 3.11 --custom-compile-command "make lock" \
  --no-emit-index-url --upgrade
TPU_VM := --python-platform x86_64-manylinux_2_31

# Not one uv.lock: the TPU's environment leaves `tensorflow` out by an override, which uv.lock knows only for all environments at once.
lock: $(UV)
	$(UV) $(LOCK) setup.py -o requirements.lock
	$(UV) $(LOCK) setup.py --extra dev -c requirements.lock -o requirements-dev.lock
	$(UV) --directory trainer $(LOCK) pyproject.toml -o requirements.lock
	$(UV) --directory trainer $(LOCK) pyproject.toml --extra dev -c requirements.lock -o requirements-dev.lock
	$(UV) --directory trainer $(LOCK) pyproject.toml --extra dev --extra tpu-check -c requirements-dev.lock -o requirements-tpu-check.lock
	$(UV) --directory trainer $(LOCK) $(TPU_VM) --override no-tensorflow.txt pyproject.toml requirements-tpu.in -c requirements.lock -o requirements-tpu.lock
	$(UV) --directory trainer $(LOCK) $(TPU_VM) pyproject.toml --extra gpu -c requirements.lock -o requirements-gpu.lock
	# For macOS, whose torch needs none of CUDA's packages; what is left is the same on Linux. No hashes: torch's file differs.
	MACOSX_DEPLOYMENT_TARGET=14.0 $(UV) --directory trainer $(LOCK) --no-generate-hashes --python-platform aarch64-apple-darwin \
	  requirements-export.in -o requirements-export.lock

clean:
	rm -rf .venv trainer/.venv trainer/.venv-export trainer/.venv-tpu-check demo-output
