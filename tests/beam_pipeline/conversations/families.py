"""Chat templates in the formats of today's models, written from the descriptions of these formats, and a tokenizer."""

# ruff: noqa: E501 (lines of templates)

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

QWEN_TOOLS = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set last = namespace(user=-1) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set last.user = loop.index0 %}{%- endif %}{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content or '' %}
        {%- set reasoning = message.reasoning_content or '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > last.user and reasoning %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if not loop.first or content %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {%- if call.function.arguments is string %}{{- call.function.arguments }}
            {%- else %}{{- call.function.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

LLAMA3 = """
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

GEMMA = """
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set prefix = messages[0]['content'] + '\\n\\n' %}{%- set rest = messages[1:] %}
{%- else %}{%- set prefix = '' %}{%- set rest = messages %}{%- endif %}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<start_of_turn>' + role + '\\n' + (prefix if loop.first else '') }}
    {%- if message['content'] is string %}{{- message['content'] | trim }}
    {%- else %}{%- for item in message['content'] %}{{- item['text'] | trim }}{%- endfor %}{%- endif %}
    {{- '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}
"""

MISTRAL = """
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.role == 'system' %}{{- '[SYSTEM_PROMPT] ' + message.content + '[/SYSTEM_PROMPT]' }}
    {%- else %}{{- ' ' + message.content + eos_token }}{%- endif %}
{%- endfor %}
"""

PHI = """
{%- for message in messages %}
    {{- '<|' + message['role'] + '|>' + '\\n' + message['content'] + '<|end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- else %}{{- eos_token }}{%- endif %}
"""

DEEPSEEK = """
{%- set ns = namespace(system='') %}
{%- for message in messages %}{%- if message.role == 'system' %}{%- set ns.system = message.content %}{%- endif %}{%- endfor %}
{{- bos_token ~ ns.system }}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{- '<|User|>' ~ message.content }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content.split('</think>')[-1] if '</think>' in message.content else message.content %}
        {{- '<|Assistant|>' ~ content ~ '<|end_of_sentence|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|Assistant|>' }}{%- endif %}
"""

HARMONY = """
{{- '<|start|>system<|message|>You are ChatGPT.\\nCurrent date: ' + strftime_now('%Y-%m-%d') + '<|end|>' }}
{%- for message in messages %}
    {%- if message.role == 'system' %}{{- '<|start|>developer<|message|># Instructions\\n\\n' + message.content + '<|end|>' }}
    {%- elif message.role == 'assistant' %}
        {%- if message.thinking and loop.last %}{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}{%- endif %}
        {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + ('<|return|>' if loop.last else '<|end|>') }}
    {%- else %}{{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}
"""

TEMPLATES: Mapping[str, tuple[str, str]] = {
    "ChatML": (CHATML, "<|im_end|>"),
    "Qwen 2.5 and 3": (QWEN_TOOLS, "<|im_end|>"),
    "Llama 3": (LLAMA3, "<|eot_id|>"),
    "Gemma 2 and 3": (GEMMA, "<end_of_turn>"),
    "Mistral": (MISTRAL, "</s>"),
    "Phi": (PHI, "<|end|>"),
    "DeepSeek": (DEEPSEEK, "<|end_of_sentence|>"),
    "gpt-oss harmony": (HARMONY, "<|return|>"),
}
"""The template of each family, and the token that ends an answer."""

CONTROL = (
    *(
        "<s>",
        "</s>",
        "<pad>",
        "<|im_start|>",
        "<|im_end|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ),
    *("<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    *(
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|end|>",
        "<|User|>",
        "<|Assistant|>",
        "<|end_of_sentence|>",
    ),
    *("<|start|>", "<|message|>", "<|channel|>", "<|return|>"),
)
ORDINARY = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Added tokens that are not special, so messages may have them."""


def save_tokenizer(folder: Path, template: str, *, strips: bool = False, sentencepiece: bool = False) -> Path:
    """Saves a small tokenizer with all families' control tokens. With `strips`, these take the white space after them."""
    if sentencepiece:
        core = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        core.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        alphabet = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
        trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=alphabet, show_progress=False)
    else:
        core = Tokenizer(models.BPE())
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
        initial = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=initial, show_progress=False)
    words = "the cat sat on a mat and said hello to the user and assistant who\n\nran\n away system model"
    core.train_from_iterator([words, words + "\n\n\n", json.dumps({"name": words})] * 4, trainer)
    if sentencepiece:  # as files of today: bytes and the unknown token are no added tokens
        parts = json.loads(core.to_str())
        core = Tokenizer.from_str(json.dumps(parts | {"added_tokens": []}))
    core.add_special_tokens([AddedToken(token, normalized=False, rstrip=strips) for token in CONTROL])
    core.add_tokens([AddedToken(token, normalized=False) for token in ORDINARY])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder
