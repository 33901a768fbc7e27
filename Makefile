# make setup   two environments: .venv (the pipeline) and trainer/.venv (the trainer)
# make demo    text → tokenizer → shards → a trained model; INPUT=path uses your own text
# make test    the whole test suite
# make compile-check CONFIG=… TOPOLOGY=v5e:2x4   would this training fit a TPU, and what would it cost? (no TPU needed)
# make lint    what CI lints
# make lock    refresh both environments' locked dependencies

PYTHON ?= $(shell command -v python3.11 || command -v python3)
UV_VERSION := 0.13.8
INPUT ?=
OUTPUT ?= demo-output

PIPELINE := .venv/bin/python
TRAINER := trainer/.venv/bin/python
UV := .venv/bin/uv
TPU_CHECK := trainer/.venv-tpu-check/bin/python
CONFIG ?= trainer/configs/tiny-mlm.yaml
TOPOLOGY ?= v5e:2x4
OPTIONS ?=

.PHONY: setup demo test test-pipeline test-trainer test-tpu-check compile-check lint lock clean

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
	$(PIPELINE) -m pytest -n auto --dist loadfile tests/beam_pipeline tests/end_to_end tests/deploy

test-trainer: setup
	$(TRAINER) -m pytest -n auto --dist loadfile tests/tpu_trainer

test-tpu-check: trainer/.venv-tpu-check/.ready
	$(TPU_CHECK) -m pytest tests/tpu_check

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

lock: $(UV)
	$(UV) pip compile --quiet --generate-hashes --python-version 3.11 --custom-compile-command "make lock" \
	  --no-emit-index-url --upgrade setup.py -o requirements.lock
	$(UV) pip compile --quiet --generate-hashes --python-version 3.11 --custom-compile-command "make lock" \
	  --no-emit-index-url --upgrade setup.py --extra dev -c requirements.lock -o requirements-dev.lock
	cd trainer && ../$(UV) pip compile --quiet --generate-hashes --python-version 3.11 --custom-compile-command "make lock" \
	  --no-emit-index-url --upgrade pyproject.toml -o requirements.lock
	cd trainer && ../$(UV) pip compile --quiet --generate-hashes --python-version 3.11 --custom-compile-command "make lock" \
	  --no-emit-index-url --upgrade pyproject.toml --extra dev -c requirements.lock -o requirements-dev.lock
	cd trainer && ../$(UV) pip compile --quiet --generate-hashes --python-version 3.11 --custom-compile-command "make lock" \
	  --no-emit-index-url --upgrade pyproject.toml --extra dev --extra tpu-check -c requirements-dev.lock \
	  -o requirements-tpu-check.lock
	cd trainer && ../$(UV) pip compile --quiet --generate-hashes --python-version 3.11 --custom-compile-command "make lock" \
	  --no-emit-index-url --upgrade --python-platform x86_64-manylinux_2_31 --override no-tensorflow.txt pyproject.toml \
	  requirements-tpu.in -c requirements.lock -o requirements-tpu.lock
	cd trainer && ../$(UV) pip compile --quiet --generate-hashes --python-version 3.11 --custom-compile-command "make lock" \
	  --no-emit-index-url --upgrade --python-platform x86_64-manylinux_2_31 pyproject.toml --extra gpu \
	  -c requirements.lock -o requirements-gpu.lock

clean:
	rm -rf .venv trainer/.venv trainer/.venv-tpu-check demo-output
