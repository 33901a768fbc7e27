#!/usr/bin/env bash
# Installs built distributions into empty environments, one for each version of Python, and uses them as a new user would.
#
#     .ci/check_distributions.sh dist
#
# In each, the pipeline trains a tokenizer and prepares and verifies a dataset, and the reader reads it; all versions must
# write the same bytes. Another environment installs the pipeline from its sdist, and one trains a few steps.
set -euo pipefail
shopt -s inherit_errexit

dist=$(cd "${1:?usage: .ci/check_distributions.sh FOLDER}" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
read -ra versions <<< "${PYTHON_VERSIONS:-3.10 3.11 3.12 3.13}"
trainer_version=${TRAINER_PYTHON_VERSION:-3.12}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" # so that nothing is imported from the repository
cat "$root"/docs/*.md > corpus.md

install() { # ENVIRONMENT VERSION DISTRIBUTION…
  uv venv --quiet --no-project --python "$2" "$1"
  uv pip install --quiet --python "$1/bin/python" "${@:3}"
}

size() { # ENVIRONMENT: megabytes of its packages
  du -sm "$1"/lib/python*/site-packages | cut -f 1
}

quietly() { # COMMAND…: shows what it prints if it fails
  "$@" > log 2>&1 || { cat log >&2; return 1; }
}

prepare() { # ENVIRONMENT FOLDER: uses the pipeline and the reader; prints the checksum of all rows' files
  local bin="$work/$1/bin"
  quietly "$bin/tokenmill" train-tokenizer --input corpus.md --model bpe --vocab_size 1000 --output "$2/tokenizer"
  quietly "$bin/tokenmill" prepare --input corpus.md --tokenizer "$2/tokenizer" --splits train=0.9,validation=0.1 \
    --max_length 64 --output "$2/dataset"
  quietly "$bin/tokenmill" verify "$2/dataset"
  "$bin/python" - "$2/dataset/train" << 'PYTHON'
import importlib.util, sys
from beam_pipeline.native.library import rows_library
from tokenmill_reader import Dataset
from tokenmill_reader.compiled import library
rows = Dataset.open(sys.argv[1])
assert len(rows) > 100 and rows[0]["input_ids"].shape == (64,), len(rows)
assert rows_library() is not None and library() is not None, "the distributions have no compiled code"
heavy = [name for name in ("tensorflow", "tensorflow_transform", "datasets", "pandas") if importlib.util.find_spec(name)]
assert not heavy, f"a plain installation has {heavy}"
PYTHON
  cat "$2"/dataset/*/*.tfrecord | sha256sum | cut -d ' ' -f 1
}

for version in "${versions[@]}"; do
  install "env-$version" "$version" "$dist"/tokenmill-*.whl "$dist"/tokenmill_reader-*.whl
  mkdir "$version"
  checksum=$(prepare "env-$version" "$version")
  echo "Python $version: $(size "env-$version") MB; prepared, verified and read: $checksum"
  [[ $checksum == "${expected:=$checksum}" ]] || { echo "other bytes than with Python ${versions[0]}" >&2; exit 1; }
  rm -rf "env-$version"
done

install env-sdist "$trainer_version" "$dist"/tokenmill-*.tar.gz "$dist"/tokenmill_reader-*.tar.gz
mkdir sdist
[[ $(prepare env-sdist sdist) == "$expected" ]] || { echo "other bytes from the sdist" >&2; exit 1; }
echo "sdist: the same bytes"
rm -rf env-sdist

install env-trainer "$trainer_version" "$dist"/tokenmill_trainer-*.whl "$dist"/tokenmill_reader-*.whl
quietly env-trainer/bin/tokenmill-trainer fit --config tiny-mlm --train.steps 4 \
  --schedule.warmup_steps 1 --data.train "${versions[0]}/dataset/train" --output_dir run
echo "trainer, Python $trainer_version: $(size env-trainer) MB; trained 4 steps"
