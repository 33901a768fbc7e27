# make setup   two environments: .venv (the pipeline) and trainer/.venv (the trainer)
# make demo    text → tokenizer → shards → a trained model; INPUT=path uses your own text
# make test    the whole test suite
# make lint    what CI lints
# make lock    refresh both environments' locked dependencies

PYTHON ?= $(shell command -v python3.11 || command -v python3)
UV_VERSION := 0.13.8
INPUT ?=
OUTPUT ?= demo-output

PIPELINE := .venv/bin/python
TRAINER := trainer/.venv/bin/python
UV := .venv/bin/uv

.PHONY: setup demo test lint lock clean

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

demo: setup
	$(PIPELINE) -m demo --output $(OUTPUT) $(if $(INPUT),--input $(INPUT))

test: setup
	$(PIPELINE) -m pytest tests/beam_pipeline tests/end_to_end
	$(TRAINER) -m pytest tests/tpu_trainer

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

clean:
	rm -rf .venv trainer/.venv demo-output
