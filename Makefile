# make setup            create two environments: .venv (pipeline) and trainer/.venv (trainer)
# make demo             text → tokenizer → shards → a trained model; INPUT=path uses your own text
# make demo-chat        after it: conversations → a model that answers
# make test             run the tests of both programs: every promise once
# make test-all         the same, and the wide tests: further cases of matrices, such as every model type
# make test-wide WIDE=3/12  the wide tests only, and of them a twelfth
# make fuzz CASES=1000  run `prepare` and `convert` with seeded faults and hostile input (make test runs a dozen cases)
# make test-export      compare exported models in PyTorch, transformers 5 and lm-eval (in a separate environment)
# make test-transformers  test tokenizers with transformers 4.57 and 5 (in separate environments)
# make test-adapters    run the reader's adapters with PyTorch, Grain, JAX and datasets (in a separate environment)
# make test-trackers    run the trackers with their libraries (in a separate environment)
# make test-tpu-check   run the tests that need the TPU compiler: half an hour of a core (in a separate environment)
# make compile-check CONFIG=… TOPOLOGY=v5e:2x4   compile a training step for a TPU, without one: does it fit, at what cost?
# make kernels          compile the TPU kernels to bytecode
# make test-engines     run on Flink, Spark, Prism and fake-gcs-server: half an hour; needs Java 11 or 17, Maven and Go
# make test-jobset      check the requests of `launch` on GKE with the types and rules of JobSet and Kubernetes; needs Go
# make test-images      build the images of deploy/ and run them; needs root, Go, buildah and debootstrap
# make test-cloud-build run Cloud Build's files from a tag to a model in a sandbox; needs the above, Java 11 or 17, and Maven
# make lint             run CI's linters, and build the docs
# make release          build the distributions that an index takes into dist/, check them, and try them with each Python
# make test-wheels      install what is in dist/ into empty environments of Python 3.10 to 3.13, and use it
# make build-wheels     build the compiled wheels from dist/ into wheels/, as an index takes them, in containers on Linux
# make docs             build the site of the docs into build/site and check its links (in a separate environment)
# make docs-options     generate docs/options.md and docs/trainer-options.md from the declarations of the options
# make lock             upgrade the locked dependencies of all environments

# The first that runs: a version that pyenv has, but has not selected, does not.
PYTHON ?= $(shell for python in python3.12 python3.13 python3.11 python3; do $$python -c '' 2> /dev/null && echo $$python && break; done)
UV_VERSION := 0.13.8
INPUT ?=
OUTPUT ?= demo-output
# The repository's address in what `make release` builds. Its default is the placeholder of the sources.
REPOSITORY ?= https://github.com/OWNER/tokenmill
CASES ?= 1000
SEED ?= 0

PIPELINE := .venv/bin/python
TRAINER := trainer/.venv/bin/python
UV := .venv/bin/uv
EXPORT := trainer/.venv-export/bin/python
ADAPTERS := reader/.venv-adapters/bin/python
TRACKERS := reader/.venv-trackers/bin/python
# PyPI's torch for Linux is a CUDA build of gigabytes. This index has the CPU build.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TPU_CHECK := trainer/.venv-tpu-check/bin/python
TRANSFORMERS := 4.57.6 5.24.0
DOCS := .venv-docs/bin/python
RELEASE := .venv-release/bin/python
CONFIG ?= tiny-mlm
TOPOLOGY ?= v5e:2x4
OPTIONS ?=
# Which of the tests marked `wide` to run: none, all, or a part such as 3/12.
WIDE ?= none
PYTEST = -m pytest -n auto --dist loadfile --wide $(WIDE)

.PHONY: setup demo demo-chat test test-all test-wide test-pipeline test-trainer fuzz test-export test-transformers test-adapters test-trackers test-tpu-check test-engines setup-engines-quick test-engines-quick test-jobset test-images test-cloud-build compile-check kernels release test-wheels build-wheels docs docs-options lint lock clean

setup: .venv/.ready trainer/.venv/.ready

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo "tokenmill: the locked environments need Python 3.11, 3.12 or 3.13; set it with: make PYTHON=/path/to/python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIPELINE) -m pip install --quiet uv==$(UV_VERSION)

# A change to a lock or to the metadata reinstalls the environment from the lock. Compiled code of an earlier version, or for another
# Python, must not stay.
.venv/.ready: $(UV) requirements-dev.lock pyproject.toml $(wildcard beam_pipeline/native/*.[ch]) reader/pyproject.toml reader/tokenmill_reader/records.c
	$(UV) pip install --quiet --python $(PIPELINE) --require-hashes -r requirements-dev.lock
	rm -f beam_pipeline/native/_*.so reader/tokenmill_reader/_records.*
	$(UV) pip install --quiet --python $(PIPELINE) --no-deps -e . -e reader
	@touch $@

trainer/.venv/.ready: $(UV) trainer/requirements-dev.lock trainer/pyproject.toml reader/pyproject.toml
	$(UV) venv --quiet --allow-existing --python $(PIPELINE) trainer/.venv
	$(UV) pip install --quiet --python $(TRAINER) --require-hashes -r trainer/requirements-dev.lock
	$(UV) pip install --quiet --python $(TRAINER) --no-deps -e trainer -e reader
	@touch $@

trainer/.venv-tpu-check/.ready: $(UV) trainer/requirements-tpu-check.lock trainer/pyproject.toml reader/pyproject.toml
	$(UV) venv --quiet --allow-existing --python $(PIPELINE) trainer/.venv-tpu-check
	$(UV) pip install --quiet --python $(TPU_CHECK) --require-hashes -r trainer/requirements-tpu-check.lock
	$(UV) pip install --quiet --python $(TPU_CHECK) --no-deps -e trainer -e reader
	@touch $@

# OPTIONS are further options of compile-check: OPTIONS="--find_batch_size --output figures.json".
compile-check: trainer/.venv-tpu-check/.ready
	$(TPU_CHECK) -m tpu_trainer compile-check --config $(CONFIG) --topology $(TOPOLOGY) $(OPTIONS)

demo: setup
	demo/run.sh $(OUTPUT) $(INPUT)

demo-chat: setup
	demo/chat.sh $(OUTPUT)

test: test-pipeline test-trainer

test-all:
	$(MAKE) test WIDE=all

PIPELINE_TESTS := $(addprefix tests/,beam_pipeline tokenmill_reader end_to_end deploy fuzz)

test-pipeline: setup
	$(PIPELINE) $(PYTEST) $(PIPELINE_TESTS)

# In parts, each with new workers: TensorFlow never frees what XLA has compiled, some 70 MB for each training step.
LARGE_PARTS := $(addprefix tests/tpu_trainer/,network/ devices/ training/ verbs/ __pycache__/)
TRAINER_TESTS := "$(filter-out $(LARGE_PARTS),$(wildcard tests/tpu_trainer/*/))" \
  "$(wildcard tests/tpu_trainer/network/test_[a-c]*.py)" "$(wildcard tests/tpu_trainer/network/test_[d-z]*.py)" \
  "tests/tpu_trainer/devices tests/tpu_trainer/training" "tests/tpu_trainer/verbs $(wildcard tests/tpu_trainer/test_*.py)"

test-trainer: setup
	for part in $(TRAINER_TESTS); do $(TRAINER) $(PYTEST) $$part || exit 1; done

# A part, in which no worker needs much memory; `make test-all` runs all.
test-wide: WIDE := 0/12
test-wide: setup
	$(PIPELINE) $(PYTEST) -m wide $(PIPELINE_TESTS)
	$(TRAINER) $(PYTEST) -m wide tests/tpu_trainer

# SEED=1 generates other cases; `python -m tests.fuzz --seed S --only N` replays one.
fuzz: setup
	$(PIPELINE) -m tests.fuzz --cases $(CASES) --seed $(SEED)

# pip installs torch: it prefers the CPU build of the locked version if it finds one. The lock has no CUDA packages.
trainer/.venv-export/.ready: $(UV) trainer/requirements-export.lock
	$(PIPELINE) -m venv trainer/.venv-export
	$(EXPORT) -m pip install --quiet --no-deps --extra-index-url $(TORCH_INDEX) $$(grep '^torch==' trainer/requirements-export.lock)
	$(UV) pip install --quiet --python $(EXPORT) -r trainer/requirements-export.lock
	@touch $@

# The tokenizers that it compares are written with transformers 4.
test-export: setup trainer/.venv-export/.ready .venv-transformers/$(firstword $(TRANSFORMERS))/.ready
	PIPELINE_PYTHON=.venv-transformers/$(firstword $(TRANSFORMERS))/bin/python TRAINER_PYTHON=$(TRAINER) PYTHONPATH=trainer:reader $(EXPORT) -m pytest tests/tpu_trainer_export

# The pipeline's locked environment with other releases of transformers.

.venv-transformers/%/.ready: $(UV) requirements-dev.lock pyproject.toml
	$(UV) venv --quiet --allow-existing --python $(PIPELINE) $(@D)
	$(UV) pip install --quiet --python $(@D)/bin/python --require-hashes -r requirements-dev.lock
	$(UV) pip install --quiet --python $(@D)/bin/python transformers==$*
	$(UV) pip install --quiet --python $(@D)/bin/python --no-deps -e . -e reader
	@touch $@

test-transformers: $(TRANSFORMERS:%=.venv-transformers/%/.ready)
	for release in $(TRANSFORMERS); do \
	  .venv-transformers/$$release/bin/python -m pytest tests/beam_pipeline/tokenization tests/beam_pipeline/engines \
	    tests/beam_pipeline/verbs/test_train_tokenizer.py || exit 1; \
	done

# Checks the hashes in the lock, but does not require any: PyPI's build of torch brings CUDA packages, which it does not have.
reader/.venv-adapters/.ready: $(UV) reader/requirements-adapters.lock reader/pyproject.toml
	$(PIPELINE) -m venv reader/.venv-adapters
	$(ADAPTERS) -m pip install --quiet --no-deps --extra-index-url $(TORCH_INDEX) $$(grep -o '^torch==[^ ]*' reader/requirements-adapters.lock)
	$(UV) pip install --quiet --python $(ADAPTERS) -r reader/requirements-adapters.lock
	$(UV) pip install --quiet --python $(ADAPTERS) --no-deps -e reader
	@touch $@

test-adapters: setup reader/.venv-adapters/.ready
	PIPELINE_PYTHON=$(PIPELINE) PYTHONPATH=. $(ADAPTERS) -m pytest tests/tokenmill_reader_adapters

reader/.venv-trackers/.ready: $(UV) reader/requirements-trackers.lock reader/pyproject.toml
	$(UV) venv --quiet --allow-existing --python $(PIPELINE) reader/.venv-trackers
	$(UV) pip install --quiet --python $(TRACKERS) --require-hashes -r reader/requirements-trackers.lock
	$(UV) pip install --quiet --python $(TRACKERS) --no-deps -e reader
	@touch $@

test-trackers: reader/.venv-trackers/.ready
	PYTHONPATH=. $(TRACKERS) -m pytest tests/tokenmill_reader_trackers

test-tpu-check: trainer/.venv-tpu-check/.ready
	$(TPU_CHECK) -m pytest tests/tpu_check

.engines/.flink: .venv/.ready $(wildcard tests/engines/setup/*)
	tests/engines/setup/flink.sh .engines $(PIPELINE)
	@touch $@

.engines/.spark: tests/engines/setup/jars.sh $(wildcard tests/engines/setup/spark/*)
	tests/engines/setup/jars.sh tests/engines/setup/spark .engines/spark/jars
	@touch $@

.engines/prism: PACKAGE := github.com/apache/beam/sdks/v2/go/cmd/prism
.engines/boot: PACKAGE := github.com/apache/beam/sdks/v2/python/container
.engines/fake-gcs-server: PACKAGE := github.com/fsouza/fake-gcs-server
.engines/prism .engines/boot .engines/fake-gcs-server: tests/engines/setup/go.sum
	mkdir -p .engines && cd tests/engines/setup && ./retry.sh go build -o $(CURDIR)/$@ $(PACKAGE)

# WIDE=all also runs each case with parallelism 1 and 4.
test-engines: setup .engines/.flink .engines/.spark .engines/prism .engines/boot .engines/fake-gcs-server
	$(PIPELINE) -m pytest --wide $(WIDE) tests/engines tests/google_cloud --junitxml .engines/results.xml
	$(TRAINER) -m pytest tests/tpu_trainer/test_gcs.py -k fake-gcs-server

setup-engines-quick: setup .engines/.flink .engines/boot

# One killed task manager.
test-engines-quick: setup-engines-quick
	$(PIPELINE) -m pytest "tests/engines/test_faults.py::test_a_job_outlives_a_killed_task_manager[tokenizing]"

# What Kubernetes and JobSet accept. Their schema of JobSets is in JobSet's module.
.engines/validate-jobset: tests/jobset/validate/main.go tests/jobset/validate/go.sum
	mkdir -p .engines && cd tests/jobset/validate && $(CURDIR)/tests/engines/setup/retry.sh go build -o $(CURDIR)/$@ .
	cd tests/jobset/validate && cp "$$(go list -m -f '{{.Dir}}' sigs.k8s.io/jobset)/config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml" $(CURDIR)/.engines/jobsets.yaml

test-jobset: setup .engines/validate-jobset
	$(TRAINER) -m pytest tests/jobset

# Builds without a daemon, on stand-ins of the base images. STORAGE_DRIVER=vfs, if the file system has no overlays.
test-images: setup .engines/boot
	$(PIPELINE) -m pytest tests/images

# In namespaces of its own: nothing outside this machine can be reached, and no process survives.
test-cloud-build: setup .engines/.flink .engines/boot .engines/fake-gcs-server
	$(PIPELINE) -m tests.images.buildah
	unshare --mount --net --pid --fork --kill-child --mount-proc $(PIPELINE) -m pytest tests/cloud_build

kernels: trainer/.venv-tpu-check/.ready
	JAX_PLATFORMS=cpu $(TPU_CHECK) -m tpu_trainer.tpu_check.kernel_sources trainer/tpu_trainer/network/attention_kernels.zip

# Of their own, so that the tools of the docs never hold back a dependency of the programs.
.venv-docs/.ready: $(UV) requirements-docs.lock
	$(UV) venv --quiet --allow-existing --python $(PIPELINE) .venv-docs
	$(UV) pip install --quiet --python $(DOCS) --require-hashes -r requirements-docs.lock
	@touch $@

.venv-release/.ready: $(UV) requirements-release.lock
	$(UV) venv --quiet --allow-existing --python $(PIPELINE) .venv-release
	$(UV) pip install --quiet --python $(RELEASE) --require-hashes -r requirements-release.lock
	@touch $@

# For auditwheel and the scripts.
release test-wheels: export PATH := $(CURDIR)/.venv-release/bin:$(CURDIR)/.venv/bin:$(PATH)

release: .venv-release/.ready
	rm -rf dist
	$(RELEASE) .ci/build_distributions.py dist --repository $(REPOSITORY)
	$(RELEASE) -m twine check --strict dist/*
	$(MAKE) test-wheels

# uv downloads a Python that is not in PATH. With pyenv: PYENV_VERSION=3.10:3.11:3.12:3.13 make test-wheels
test-wheels: $(UV)
	.ci/check_distributions.sh dist

# A wheel without compiled code would be an error here, though it could be used.
build-wheels: .venv-release/.ready
	rm -rf wheels
	for sdist in dist/tokenmill-*.tar.gz dist/tokenmill_reader-*.tar.gz; do $(RELEASE) -m cibuildwheel --output-dir wheels $$sdist || exit 1; done
	for wheel in wheels/*.whl; do $(RELEASE) -m zipfile --list $$wheel | grep -E '_(rows|records)\.abi3' || exit 1; done

docs: .venv-docs/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS) -m mkdocs build

docs-options: setup
	$(PIPELINE) -m beam_pipeline.options.options_page > docs/options.md
	$(TRAINER) -m tpu_trainer.verbs.options_page > docs/trainer-options.md

lint: setup docs
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports --no-cache --no-logo
	cd trainer && ../.venv/bin/lint-imports --no-cache --no-logo
	cd reader && ../.venv/bin/lint-imports --no-cache --no-logo
	@! grep -rnE --exclude-dir='.venv*' --exclude-dir=.engines --exclude-dir=.git '^(<{7}|>{7}) ' .  # merge conflict markers

LOCK := pip compile --quiet --generate-hashes --custom-compile-command "make lock" --no-emit-index-url \
  --no-emit-package tokenmill-reader --upgrade
# The environments of `make` have the same versions with each Python. Those of images are for the image's Python and for Linux.
ANY_PYTHON := --universal --fork-strategy fewest --python-version 3.11
IMAGE := --python-version 3.12 --python-platform x86_64-manylinux_2_31

# The reader is on no index: uv finds it in its folder, and the locks leave it out.
# Not a single uv.lock: its overrides apply to all environments, but only the TPU environment excludes `tensorflow`.
lock: $(UV)
	echo ./reader | $(UV) $(LOCK) $(ANY_PYTHON) pyproject.toml - --extra dev -o requirements-dev.lock
	echo ./reader | $(UV) $(LOCK) $(IMAGE) pyproject.toml - --extra all -c requirements-dev.lock -o requirements.lock
	$(UV) $(LOCK) $(ANY_PYTHON) requirements-docs.in -o requirements-docs.lock
	$(UV) $(LOCK) $(ANY_PYTHON) requirements-release.in -o requirements-release.lock
	$(UV) --directory trainer $(LOCK) $(ANY_PYTHON) pyproject.toml --extra dev -o requirements-dev.lock
	$(UV) --directory trainer $(LOCK) $(IMAGE) pyproject.toml --extra launch -c requirements-dev.lock -o requirements.lock
	$(UV) --directory trainer $(LOCK) $(ANY_PYTHON) pyproject.toml --extra dev --extra tpu-check -c requirements-dev.lock -o requirements-tpu-check.lock
	$(UV) --directory trainer $(LOCK) $(IMAGE) --override no-tensorflow.txt pyproject.toml --extra launch requirements-tpu.in -c requirements.lock -o requirements-tpu.lock
	# The JAX of the tests.
	$(UV) --directory trainer $(LOCK) $(IMAGE) pyproject.toml --extra launch --extra pjrt requirements-pjrt.in -c requirements-dev.lock -o requirements-pjrt.lock
	$(UV) --directory trainer $(LOCK) $(IMAGE) pyproject.toml --extra gpu --extra launch -c requirements.lock -o requirements-gpu.lock
	# Resolved for macOS, where torch needs no CUDA packages; the other packages are the same on Linux.
	MACOSX_DEPLOYMENT_TARGET=14.0 $(UV) --directory reader $(LOCK) --python-version 3.11 --python-platform aarch64-apple-darwin \
	  requirements-adapters.in -o requirements-adapters.lock
	printf 'hypothesis\npytest\n' | $(UV) --directory reader $(LOCK) $(ANY_PYTHON) pyproject.toml - --extra wandb --extra mlflow --extra trackio --extra otlp -o requirements-trackers.lock
	# No hashes, because torch's files differ.
	MACOSX_DEPLOYMENT_TARGET=14.0 $(UV) --directory trainer $(LOCK) --python-version 3.11 --no-generate-hashes \
	  --python-platform aarch64-apple-darwin pyproject.toml --extra dev --extra lm-eval requirements-export.in -c requirements-dev.lock \
	  -o requirements-export.lock

clean:
	rm -rf .venv .venv-docs .venv-transformers .venv-release build dist wheels trainer/.venv trainer/.venv-export trainer/.venv-tpu-check reader/.venv-adapters reader/.venv-trackers .engines demo-output
