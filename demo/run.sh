#!/usr/bin/env bash
# From text to a language model that continues it, on this machine: tokenizer, dataset, training, export, generation.
#
#     demo/run.sh FOLDER [INPUT …]       or: make demo [INPUT=…] [OUTPUT=FOLDER]
#
# INPUT is your own text: files, globs or folders of .txt, .md, .jsonl or .parquet. The default is the source of Python's
# standard library, of which every Python has a copy. Run it again after an interruption: each step continues or is skipped.
set -Eeuo pipefail # -E: the trap holds in functions, too

out=${1:?usage: demo/run.sh FOLDER [INPUT …]}
shift
here=$(cd "$(dirname "$0")" && pwd)
python="$here/../.venv/bin/python"
model=${MODEL:-$here/model.yaml} # what `fit` trains; MODEL=… names another file

if (($#)); then
  text=(--input "$@")
else
  library=$("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
  echo "LIB is $library"
  text=(--input "$library/*.py")
  for package in asyncio email http importlib json logging multiprocessing unittest; do
    text+=("$library/$package/*.py")
  done
fi

steps=6
# shellcheck source=demo/steps.sh
source "$here/steps.sh"

step "Train a tokenizer" \
  tokenmill train-tokenizer "${text[@]}" --vocab_size 2048 --special_tokens "<|im_start|>" "<|im_end|>" \
  --output "$out/tokenizer" --resume

step "Write the dataset: rows of 128 tokens in shards" \
  tokenmill prepare "${text[@]}" --tokenizer "$out/tokenizer" --append_eos --max_length 128 \
  --splits train=0.95,validation=0.05 --output "$out/dataset" --resume

if ! compgen -G "$out/dataset/validation/*.tfrecord" > /dev/null; then
  echo "demo: too little text: no document is left for validation; use more (100 kB is enough to see the model learn)" >&2
  exit 2
fi

step "Check that the dataset is whole" \
  tokenmill verify "$out/dataset"

step "Train a model from scratch" \
  tokenmill-trainer fit --config "$model" --data.train "$out/dataset/train" \
  --data.validation "$out/dataset/validation" --output_dir "$out/run"

step "Export it for transformers" \
  tokenmill-trainer export --run "$out/run" --output "$out/model"

"$python" "$here/held_out.py" choose "$out/dataset/validation" > "$out/questions.jsonl"
step "Continue texts that it was not trained on" \
  tokenmill-trainer generate --model "$out/model" --json --max_new_tokens 64 --temperature 0.7 --top_k 40 \
  < "$out/questions.jsonl" > "$out/answers.jsonl"
"$python" "$here/held_out.py" show "$out/run/summary.json" "$out/answers.jsonl"

cat << END

Look at
  $out/dataset/report.html   the dataset: lengths, tokens, rows and where they came from
  $out/run/loss.svg          the loss, step by step, beside the unigram entropy
  $out/model                 the model: AutoModelForCausalLM.from_pretrained("$out/model")
Teach it to answer: make demo-chat
Your own text: make demo INPUT=path/to/your.txt OUTPUT=own-model
END
