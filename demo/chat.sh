#!/usr/bin/env bash
# From the demo's model to one that answers questions: conversations, dataset, fine-tuning, export, answers.
#
#     demo/chat.sh FOLDER        or, after make demo: make demo-chat [OUTPUT=FOLDER]
#
# FOLDER is the one of demo/run.sh. Run it again after an interruption: each step continues or is skipped.
set -Eeuo pipefail

out=${1:?usage: demo/chat.sh FOLDER}
here=$(cd "$(dirname "$0")" && pwd)
python="$here/../.venv/bin/python"
train_steps=${STEPS:-300}
if [[ ! -f $out/model/config.json ]]; then
  echo "demo: $out has no model; run make demo first" >&2
  exit 2
fi

steps=5
# shellcheck source=demo/steps.sh
source "$here/steps.sh"

chat=$out/chat
step "Write questions about the functions of Python's standard library, and keep some back" \
  "$python" "$here/conversations.py" write "$chat"

step "Write the dataset: whole conversations in rows of 128 tokens, with the answers as targets" \
  tokenmill prepare --input "$chat/train.jsonl" --content conversation --tokenizer "$out/tokenizer" \
  --chat_template "$here/chatml.jinja" --max_length 128 --output "$chat/dataset" --resume

step "Fine-tune the demo's model" \
  tokenmill-trainer fit --model.init_from "$out/model" --data.train "$chat/dataset/train" --objective clm \
  --train.steps "$train_steps" --train.batch_size 16 --optimizer.learning_rate 0.002 --output_dir "$chat/run"

step "Export it for transformers, with the chat template" \
  tokenmill-trainer export --run "$chat/run" --output "$chat/model"

step "Ask what it was not trained on" \
  tokenmill-trainer generate --model "$chat/model" --chat --json --max_new_tokens 24 --batch_size 64 \
  < "$chat/held_out.jsonl" > "$chat/answers.jsonl"
"$python" "$here/conversations.py" show "$chat/answers.jsonl"

cat << END

Look at
  $chat/dataset/report.html   the dataset: turns, targets, and conversations with their targets underlined
Ask: trainer/.venv/bin/tokenmill-trainer generate --model $chat/model --chat --text 'How do I import shorten?'
END
